"""Speculation under load: plain, fixed draft lengths and adaptive, from 1 to 64 requests at once.

`python -m benchmarks.adaptive` prints a table for easy, mixed and hopeless prompts and writes
benchmarks/results/adaptive.json. Easy prompts repeat themselves, the mixed ones are half that and
half held-out code, and hopeless is held-out code with a draft of random weights. All contenders
share one target. As behind a load generator that keeps so many requests going, one that ends is
followed by another, and time begins when a quarter of the first ones' tokens are there.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import cycle
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
AT_LEAST = 32  # requests' tokens that a turn takes


def main(
    new_tokens: Annotated[int, typer.Option(help="Tokens generated a prompt.")] = 128,
    repeats: Annotated[int, typer.Option(help="Rounds; the median counts.")] = 5,
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
            engines = {PLAIN: (fixed, 0)} | {f"k = {k}": (fixed, k) for k in LENGTHS}
            engines[ADAPTIVE] = adaptive, max(LENGTHS)
            result[case] = _sweep(case, engines, new_tokens, sweep, repeats)
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


def _contender(engine: Engine, k: int, new_tokens: int, concurrency: int) -> Contender:
    """Keeps so many requests going. The first ones' lengths differ, so that ends come evenly."""
    params = SamplingParams(
        temperature=0, max_tokens=new_tokens, ignore_eos=True, num_draft_tokens=k
    )

    def run(batch: Batch) -> Run:
        coming = cycle(batch)
        going = set()
        for place in range(1, 1 + concurrency):
            length = math.ceil(new_tokens * place / concurrency)
            first = params.model_copy(update={"max_tokens": length})
            going.add(engine.add_request(next(coming), first))

        def step() -> int:
            tokens = 0
            for output in engine.step():
                tokens += len(output.token_ids)
                if output.finish_reason:
                    going.remove(output.request_id)
                    going.add(engine.add_request(next(coming), params))
            return tokens

        read = 0
        while read < concurrency * new_tokens / 4:
            read += step()
        tokens, start = 0, time.perf_counter()
        while tokens < max(2 * concurrency, AT_LEAST) * new_tokens:
            tokens += step()
        seconds = time.perf_counter() - start
        for request in going:
            engine.abort(request)
        return Run(tokens, seconds)

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
    case: str,
    engines: dict[str, tuple[Engine, int]],
    new_tokens: int,
    sweep: Sequence[int],
    repeats: int,
) -> dict[str, Any]:
    """engines: and the draft tokens that each may propose."""
    texts = _texts(case)
    result: dict[str, Any] = {}
    for concurrency in sweep:
        contenders = {
            title: _contender(engine, k, new_tokens, concurrency)
            for title, (engine, k) in engines.items()
        }
        contenders[ADAPTIVE](texts)  # it gets to know this load
        found = summarized(interleave(contenders, [texts], repeats))
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
