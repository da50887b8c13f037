"""Speculation under load: plain, fixed draft lengths and adaptive, from 1 to 64 requests at once.

`python -m benchmarks.adaptive` prints a table for easy, mixed and hopeless prompts and writes
benchmarks/results/adaptive.json, or for a larger target adaptive-MB.json. Easy prompts repeat
themselves, the mixed ones are half that and half held-out code, and hopeless is held-out code
with a draft of random weights. Contenders take turns (`loads`).
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.common import CACHE, MODELS, digest, machine, made_once, save, show
from benchmarks.contenders import model_folder
from benchmarks.loads import TURN, Load, engine_of, measured, started, take_turns, texts_of
from benchmarks.ratios import Ratio, against_best
from tandem import Engine

LENGTHS = (2, 4, 8, 16)
"""Of drafts that do not adapt; one that does may be as long as the longest."""
PLAIN, ADAPTIVE = "plain", "adaptive"
TITLES = (PLAIN, *(f"k = {k}" for k in LENGTHS), ADAPTIVE)
RATIO = "adaptive by the best other"
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)


def main(
    new_tokens: Annotated[int, typer.Option(help="Tokens generated a prompt.")] = 128,
    seconds: Annotated[float, typer.Option(help="Measured of each contender and load.")] = 20.0,
    warm_up: Annotated[float, typer.Option(help="Seconds of each before these.")] = 5.0,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
    concurrencies: Annotated[list[int] | None, typer.Option(help="Requests at once.")] = None,
    megabytes: Annotated[int | None, typer.Option(help="Of the target, if not the demo's.")] = None,
) -> None:
    """Measures and reports."""
    torch.set_num_threads(threads)
    sweep = concurrencies or list(CONCURRENCIES)
    result: dict[str, Any] = {
        "machine": machine(),
        "new_tokens": new_tokens,
        "seconds": seconds,
        "turn": TURN,
    }
    target = model_folder(megabytes)
    cases = {"easy": MODELS / "draft", "mixed": MODELS / "draft", "hopeless": _random_draft()}
    for case, draft in cases.items():
        with ExitStack() as stack:
            contenders = started(_contenders(target, draft), stack)
            texts = texts_of(case)
            result[case] = {}
            for concurrency in sweep:
                loads = {
                    title: Load(one, texts, concurrency, new_tokens)
                    for title, one in contenders.items()
                }
                turns = take_turns(f"{case}, {concurrency}", loads, warm_up, seconds)
                found: dict[str, Any] = {title: measured(runs) for title, runs in turns.items()}
                found[ADAPTIVE]["of_the_best_other"] = against_best(turns, ADAPTIVE)
                result[case][str(concurrency)] = found
        _show(case, result[case])
    save("adaptive" if megabytes is None else f"adaptive-{megabytes}", result)


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


def _contenders(target: Path, draft: Path) -> dict[str, Engine]:
    def drafting(most: int, **options: Any) -> Engine:
        return engine_of(target, draft_model=draft, num_speculative_tokens=most, **options)

    fixed = {f"k = {k}": drafting(k) for k in LENGTHS}
    adaptive = drafting(max(LENGTHS), adaptive_speculation=True)
    return {PLAIN: engine_of(target), **fixed, ADAPTIVE: adaptive}


def speeds(of: dict[str, Any]) -> dict[str, float]:
    """Tokens a second by contender, of one concurrency."""
    return {title: one["tokens_per_second"] for title, one in of.items()}


def titles_of(found: dict[str, Any]) -> list[str]:
    """The contenders of a case, in order."""
    return [title for title in TITLES if all(title in of for of in found.values())]


def rows_of(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Of a case: a row a concurrency, then the geometric means; a column a contender, then the
    ratio."""
    rows: list[tuple[str, ...]] = []
    titles = titles_of(found)
    for concurrency, of in found.items():
        got, ratio = speeds(of), Ratio(*of[ADAPTIVE]["of_the_best_other"])
        shown = f"{ratio.value:.2f}× ({ratio.low:.2f} to {ratio.high:.2f})"
        rows.append((concurrency, *(f"{got[title]:.0f}" for title in titles), shown))
    means = [
        statistics.geometric_mean(speeds(of)[title] for of in found.values()) for title in titles
    ]
    return [*rows, ("mean", *(f"{mean:.0f}" for mean in means), "")]


def _show(case: str, found: dict[str, Any]) -> None:
    show(f"{case}: tokens/s", ["requests", *titles_of(found), RATIO], rows_of(found))


if __name__ == "__main__":
    typer.run(main)
