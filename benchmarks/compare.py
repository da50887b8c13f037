"""Our engine and its peers on the same checkpoints, prompts and token counts: one stream, greedy.

`python -m benchmarks.compare` prints a table for each target and kind of prompt, and writes
benchmarks/results/compare.json. Every contender is a process of its own and all take turns; they
are started anew some times, for a process may find its weights in places of memory that are read
more or less quickly. The larger targets are the demo target with identity layers (their o_proj and
down_proj are zero): the same function at the cost of a bigger model, so that drafts are accepted as
they are for the small one.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console
from rich.progress import track

from benchmarks import common
from benchmarks.common import (
    STORED_BITS,
    Batch,
    Run,
    Runs,
    Summary,
    interleave,
    load,
    machine,
    prompts,
    save,
    show,
    summarized,
)
from benchmarks.contenders import Contender, model_folder, started
from benchmarks.peers.process import OPENVINO, TANDEM, TRANSFORMERS, VLLM, Peer
from tandem.tokenizer import Tokenizer

KINDS = ("heldout", "repetitive")
PROMPT_TOKENS = 128


class Target(NamedTuple):
    """A model, and what runs it."""

    name: str
    megabytes: int | None
    """Of its weights in bfloat16; None: as it ships."""
    prompts: int
    contenders: tuple[Contender, ...]


PLAIN = tuple(Contender(software) for software in (TANDEM, OPENVINO, VLLM, TRANSFORMERS))
PEERS = tuple(
    Contender(software, method, tokens)
    for software in (OPENVINO, VLLM, TRANSFORMERS)
    for method, tokens in (("draft_model", 4), ("ngram", 8))
)
OURS = (
    Contender(TANDEM, "draft_model", 4),
    Contender(TANDEM, "draft_model", 8),
    Contender(TANDEM, "ngram", 8),
    Contender(TANDEM, "suffix", 16),
    Contender(TANDEM, "suffix,draft_model", 8),
)
TARGETS = (
    Target("demo", None, 5, (*PLAIN, *OURS, *PEERS)),
    Target("200 MB", 200, 5, (*PLAIN, *OURS, *PEERS)),
    Target("600 MB", 600, 2, (PLAIN[0], PLAIN[1], OURS[1], OURS[4], PEERS[0], PEERS[1])),
)


def main(
    new_tokens: Annotated[int, typer.Option(help="Tokens generated a prompt.")] = 128,
    repeats: Annotated[int, typer.Option(help="Rounds; the median counts.")] = 2,
    starts: Annotated[int, typer.Option(help="Times that every process is started.")] = 2,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
    only: Annotated[str, typer.Option(help="The target of this name; others' results stay.")] = "",
) -> None:
    """Measures and reports."""
    torch.set_num_threads(threads)
    result: dict[str, Any] = load("compare") if only else {"targets": {}}
    result["draft_weight_bits"] = STORED_BITS
    for target in TARGETS:
        if only in ("", target.name):
            found = _measure(target, new_tokens, repeats, starts, threads)
            result["targets"][target.name] = found
            save("compare", result)


def _measure(
    target: Target, new_tokens: int, repeats: int, starts: int, threads: int
) -> dict[str, Any]:
    folder, at = model_folder(target.megabytes), machine()
    inputs = {kind: _inputs(folder, kind, target.prompts) for kind in KINDS}
    runs: dict[str, Runs] = {kind: {} for kind in KINDS}
    texts: dict[str, dict[str, list[list[int]]]] = {kind: {} for kind in KINDS}
    versions: dict[str, str] = {}
    for _ in range(starts):
        with ExitStack() as stack:
            peers = {}
            for one in track(
                target.contenders, description=target.name, console=Console(stderr=True)
            ):
                peers[one.title] = stack.enter_context(started(one, folder, threads))
                versions[one.software.name] = peers[one.title].version
            contenders = {title: _timed(peer, new_tokens) for title, peer in peers.items()}
            for kind in KINDS:
                found = interleave(contenders, inputs[kind], repeats)
                for title, more in found.items():
                    runs[kind].setdefault(title, []).extend(more)
                    texts[kind][title] = [
                        peers[title].answers[tuple(prompt)] for (prompt,) in inputs[kind]
                    ]
    result: dict[str, Any] = {
        "machine": at,
        "new_tokens": new_tokens,
        "weights_bytes": (folder / "model.safetensors").stat().st_size,
        "versions": versions,
    }
    for kind in KINDS:
        result[kind] = _report(
            f"{target.name}, {kind}", summarized(runs[kind]), texts[kind], new_tokens
        )
    return result


def _timed(peer: Peer, new_tokens: int) -> common.Contender:
    """Generates twice: one token, for the time that the prompt takes, and all of them."""

    def run(batch: Batch) -> Run:
        first = peer.run(batch, 1)
        return peer.run(batch, new_tokens)._replace(first_seconds=first.seconds)

    return run


def _inputs(folder: Path, kind: str, count: int) -> list[Batch]:
    tokenizer = Tokenizer(folder)
    return [[tokenizer.encode(text)[:PROMPT_TOKENS]] for text in prompts(kind, count)]


def _decoding(of: Summary, new_tokens: int) -> float:
    """Tokens a second behind the first one."""
    return (new_tokens - 1) / (new_tokens / of.tokens_per_second - of.first_seconds)


def _report(
    title: str, found: dict[str, Summary], texts: dict[str, list[list[int]]], new_tokens: int
) -> dict[str, Any]:
    own = texts[PLAIN[0].title]
    result: dict[str, Any] = {}
    for name, summary in found.items():
        same = [a == b for a, b in zip(texts[name], own, strict=True)]
        result[name] = {
            "tokens_per_second": round(summary.tokens_per_second, 1),
            "first_token_ms": round(1e3 * summary.first_seconds, 2),
            "decoding_tokens_per_second": round(_decoding(summary, new_tokens), 1),
            "acceptance_rate": round(summary.acceptance_rate, 3),
            "by_repeat": [round(speed, 1) for speed in summary.by_repeat],
            "same_texts": f"{sum(same)} of {len(same)}",
        }
    rows = [
        (
            name,
            f"{one['tokens_per_second']:.0f}",
            *of_plain(result, name),
            f"{one['first_token_ms']:.1f}",
            f"{min(one['by_repeat']):.0f} to {max(one['by_repeat']):.0f}",
            one["same_texts"],
        )
        for name, one in result.items()
    ]
    columns = ["", "tokens/s", "of plain", "decoding", "first ms", "repeats", "same text"]
    show(title, columns, rows)
    return result


def of_plain(of: dict[str, Any], name: str) -> tuple[str, str]:
    """A contender's speed by our plain decoding's, with the prompt and without it."""
    plain, one = of[PLAIN[0].title], of[name]
    keys = "tokens_per_second", "decoding_tokens_per_second"
    whole, decoding = (f"{one[key] / plain[key]:.2f}×" for key in keys)
    return whole, decoding


if __name__ == "__main__":
    typer.run(main)
