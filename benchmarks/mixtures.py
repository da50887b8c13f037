"""Mixtures under load: by plain decoding and by their parts, each of which always drafts.

`python -m benchmarks.mixtures` prints a table of tokens a second for repetitive, mixed and held-out
prompts, with 1, 8 and 32 requests at once, and writes benchmarks/results/mixtures.json. Contenders
take turns (`loads`); a mixture is compared with the best of plain decoding and its own parts.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, Any, NamedTuple

import torch
import typer

from benchmarks.common import MODELS, machine, save, show
from benchmarks.loads import TURN, Load, engine_of, measured, started, take_turns, texts_of
from benchmarks.ratios import Ratio, against_best
from tandem import Engine

PLAIN = "plain"
KINDS = {"easy": "repetitive", "mixed": "mixed", "heldout": "held-out"}
CONCURRENCIES = (1, 8, 32)


class Setting(NamedTuple):
    """A method, or several."""

    methods: str
    tokens: int
    """Most of a draft."""

    @property
    def mixes(self) -> bool:
        return "," in self.methods

    @property
    def title(self) -> str:
        return f"{self.methods}, {'up to' if self.mixes else 'k ='} {self.tokens}"

    def parts(self) -> list[str]:
        """Titles of what a mixture is compared with."""
        own = self.methods.split(",")
        return [PLAIN, *(one.title for one in SETTINGS if one.methods in own)]


SETTINGS = (
    Setting("ngram", 8),
    Setting("suffix", 16),
    Setting("draft_model", 4),
    Setting("draft_model", 8),
    Setting("eagle3", 4),
    Setting("ngram,draft_model", 8),
    Setting("suffix,draft_model", 8),
    Setting("suffix,eagle3", 16),
)
MIXTURES = tuple(one for one in SETTINGS if one.mixes)
TITLES = (PLAIN, *(one.title for one in SETTINGS))


def main(
    new_tokens: Annotated[int, typer.Option(help="Tokens generated a prompt.")] = 128,
    seconds: Annotated[float, typer.Option(help="Measured of each contender and load.")] = 10.0,
    warm_up: Annotated[float, typer.Option(help="Seconds of each before these.")] = 3.0,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
    concurrencies: Annotated[list[int] | None, typer.Option(help="Requests at once.")] = None,
    kinds: Annotated[list[str] | None, typer.Option(help="Of prompts.")] = None,
) -> None:
    """Measures and reports."""
    torch.set_num_threads(threads)
    result: dict[str, Any] = {"machine": machine(), "new_tokens": new_tokens, "seconds": seconds}
    result["turn"] = TURN
    with ExitStack() as stack:
        engines = {PLAIN: engine_of(MODELS / "target")}
        engines |= {one.title: _engine(one) for one in SETTINGS}
        contenders = started(engines, stack)
        for kind in kinds or KINDS:
            texts = texts_of(kind)
            result[kind] = {}
            for count in concurrencies or CONCURRENCIES:
                loads = {
                    title: Load(one, texts, count, new_tokens) for title, one in contenders.items()
                }
                turns = take_turns(f"{KINDS[kind]}, {count}", loads, warm_up, seconds)
                found: dict[str, Any] = {title: measured(runs) for title, runs in turns.items()}
                for one in MIXTURES:
                    some = {title: turns[title] for title in (one.title, *one.parts())}
                    found[one.title]["of_the_best_other"] = against_best(some, one.title)
                result[kind][str(count)] = found
    show("tokens/s under load", ["", *columns(result)], rows_of(result))
    save("mixtures", result)


def _engine(setting: Setting) -> Engine:
    folder = MODELS / setting.methods.rpartition(",")[2].replace("draft_model", "draft")
    return engine_of(
        MODELS / "target",
        draft_model=folder if folder.exists() else None,
        speculative_method=setting.methods,
        num_speculative_tokens=setting.tokens,
        adaptive_speculation=setting.mixes,
        suffix_decoding_max_cached_requests=0,  # prompts come again
    )


def _cells(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{name}, {count}", of)
        for kind, name in KINDS.items()
        for count, of in found.get(kind, {}).items()
    ]


def columns(found: dict[str, Any]) -> list[str]:
    """Kinds of prompts and requests at once."""
    return [name for name, _ in _cells(found)]


def rows_of(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row a contender, and of each mixture one more: by the best of the others."""
    rows: list[tuple[str, ...]] = []
    cells = [of for _, of in _cells(found)]
    for title in TITLES:
        rows.append((title, *(f"{of[title]['tokens_per_second']:.0f}" for of in cells)))
    for one in MIXTURES:
        ratios = [Ratio(*of[one.title]["of_the_best_other"]) for of in cells]
        shown = [f"{ratio.value:.2f}× ({ratio.low:.2f} to {ratio.high:.2f})" for ratio in ratios]
        rows.append((f"{one.title}, by the best of its parts and plain", *shown))
    return rows


if __name__ == "__main__":
    typer.run(main)
