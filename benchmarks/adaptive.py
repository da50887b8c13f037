"""Speculation under load: plain, fixed draft lengths and adaptive, from 1 to 64 requests at once.

`python -m benchmarks.adaptive` prints a table for easy, mixed and hopeless prompts and writes
benchmarks/results/adaptive.json. Easy prompts repeat themselves, the mixed ones are half that and
half held-out code, and hopeless is held-out code with a draft of random weights. All contenders
share one target, and all requests of a batch arrive together.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.common import (
    CACHE,
    MODELS,
    Batch,
    Contender,
    Run,
    digest,
    interleave,
    machine,
    made_once,
    prompts,
    save,
    show,
    summarized,
)
from tandem import Engine, EngineConfig, SamplingParams
from tandem.tokenizer import Tokenizer

LENGTHS = (2, 4, 8)
PLAIN, ADAPTIVE = "plain", "adaptive"
TITLES = (PLAIN, *(f"k = {k}" for k in LENGTHS), ADAPTIVE)
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
AT_LEAST = 8  # requests a turn, one batch after the other


def main(
    new_tokens: Annotated[int, typer.Option(help="Tokens generated a prompt.")] = 64,
    repeats: Annotated[int, typer.Option(help="Rounds; the median counts.")] = 3,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
    concurrencies: Annotated[list[int] | None, typer.Option(help="Requests at once.")] = None,
) -> None:
    """Measures and reports."""
    torch.set_num_threads(threads)
    sweep = concurrencies or list(CONCURRENCIES)
    result: dict[str, Any] = {"machine": machine(), "new_tokens": new_tokens}
    cases = {"easy": MODELS / "draft", "mixed": MODELS / "draft", "hopeless": _random_draft()}
    for case, draft in cases.items():
        with ExitStack() as stack:
            fixed = stack.enter_context(_engine(draft, False))
            adaptive = stack.enter_context(_engine(draft, True))
            adaptive.target = fixed.target  # the same weights at the same place in memory
            contenders = {PLAIN: _contender(fixed, 0, new_tokens)}
            contenders |= {f"k = {k}": _contender(fixed, k, new_tokens) for k in LENGTHS}
            contenders[ADAPTIVE] = _contender(adaptive, max(LENGTHS), new_tokens)
            result[case] = _sweep(case, contenders, sweep, repeats)
    save("adaptive", result)


def _random_draft() -> Path:
    """The draft's shape with weights that know nothing."""
    draft = MODELS / "draft"

    def make(out: Path) -> None:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(draft))
        model.to(torch.bfloat16).save_pretrained(out)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (out / name).write_bytes((draft / name).read_bytes())

    return made_once(CACHE / "models" / f"random-draft-{digest(draft)}", make)


def _engine(draft: Path, adaptive: bool) -> Engine:
    return Engine(
        EngineConfig(
            model=MODELS / "target",
            draft_model=draft,
            num_speculative_tokens=max(LENGTHS),
            adaptive_speculation=adaptive,
            enable_prefix_caching=False,
            kv_cache_memory="512MiB",
            devices="cpu",
        )
    )


def _contender(engine: Engine, k: int, new_tokens: int) -> Contender:
    params = SamplingParams(
        temperature=0, max_tokens=new_tokens, ignore_eos=True, num_draft_tokens=k
    )

    def run(batch: Batch) -> Run:
        for prompt in batch:
            engine.add_request(prompt, params)
        start = time.perf_counter()
        while not engine.idle:
            engine.step()
        return Run(len(batch) * new_tokens, time.perf_counter() - start)

    return run


def _texts(case: str) -> list[list[int]]:
    """As many as the largest batch."""
    tokenizer = Tokenizer(MODELS / "target")
    most = max(CONCURRENCIES)
    easy, hard = (prompts(kind, most) for kind in ("repetitive", "heldout"))
    if case == "mixed":
        texts = [text for pair in zip(easy, hard, strict=False) for text in pair]
    else:
        texts = easy if case == "easy" else hard
    return [tokenizer.encode(texts[place % len(texts)]) for place in range(most)]


def _sweep(
    case: str, contenders: dict[str, Contender], sweep: Sequence[int], repeats: int
) -> dict[str, Any]:
    texts = _texts(case)
    result: dict[str, Any] = {}
    for concurrency in sweep:
        count = max(concurrency, AT_LEAST)
        inputs = [texts[start : start + concurrency] for start in range(0, count, concurrency)]
        found = summarized(interleave(contenders, inputs, repeats))
        result[str(concurrency)] = {
            title: {
                "tokens_per_second": round(one.tokens_per_second, 1),
                "by_repeat": [round(speed, 1) for speed in one.by_repeat],
            }
            for title, one in found.items()
        }
    _show(case, result)
    return result


def speeds(of: dict[str, Any]) -> dict[str, float]:
    """Tokens a second by contender, of one concurrency."""
    return {title: one["tokens_per_second"] for title, one in of.items()}


def _show(case: str, result: dict[str, Any]) -> None:
    rows = []
    for concurrency, of in result.items():
        found = speeds(of)
        best = max(speed for title, speed in found.items() if title != ADAPTIVE)
        rows.append(
            (
                concurrency,
                *(f"{found[title]:.0f}" for title in TITLES),
                f"{found[ADAPTIVE] / best:.2f}×",
            )
        )
    means = {
        title: statistics.geometric_mean(speeds(of)[title] for of in result.values())
        for title in TITLES
    }
    rows.append(("mean", *(f"{means[title]:.0f}" for title in TITLES), ""))
    show(f"{case}: tokens/s", ["requests", *TITLES, "of the best other"], rows)


if __name__ == "__main__":
    typer.run(main)
