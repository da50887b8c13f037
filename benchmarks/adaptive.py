"""Speculation under load: plain, fixed draft lengths and adaptive, from 1 to 64 requests at once.

`python -m benchmarks.adaptive` prints a table for easy, mixed and hopeless prompts and writes
benchmarks/results/adaptive.json, or for a larger target adaptive-MB.json. Easy prompts repeat
themselves, the mixed ones are half that and half held-out code, and hopeless is held-out code with
a draft of random weights. As behind a load generator that keeps so many requests going, one that
ends is followed by another. Each contender has an engine of its own, all with the same weights in
memory, and they take turns of a tenth of a second: what slows the machine down for a while slows
all of them.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console
from rich.progress import track
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.common import (
    CACHE,
    MODELS,
    Batch,
    Run,
    digest,
    machine,
    made_once,
    prompts,
    save,
    show,
)
from benchmarks.contenders import model_folder
from benchmarks.ratios import Ratio, against_best
from tandem import Engine, EngineConfig, SamplingParams
from tandem.drafting.mixture import MixtureProposer
from tandem.runners.model_runner import ModelRunner
from tandem.tokenizer import Tokenizer

LENGTHS = (2, 4, 8)
PLAIN, ADAPTIVE = "plain", "adaptive"
TITLES = (PLAIN, *(f"k = {k}" for k in LENGTHS), ADAPTIVE)
COLUMNS = (*TITLES, "adaptive by the best other")
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
TURN = 0.1  # seconds
PARTS = 5  # of the turns, whose figures show how far they differ


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
            contenders = _contenders(target, draft, stack)
            texts = _texts(case)
            result[case] = {}
            for concurrency in sweep:
                loads = {
                    title: Load(one, texts, concurrency, new_tokens)
                    for title, one in contenders.items()
                }
                turns = _turns(f"{case}, {concurrency}", loads, warm_up, seconds)
                found = {title: _speeds(runs) for title, runs in turns.items()}
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


class Clock:
    """Seconds, those left out in which others had their turns."""

    def __init__(self) -> None:
        self._left_out = 0.0
        self._stopped: float | None = time.perf_counter()

    def __call__(self) -> float:
        return time.perf_counter() - self._left_out

    @contextmanager
    def going(self) -> Iterator[None]:
        """It stands still before and behind."""
        if self._stopped is not None:
            self._left_out += time.perf_counter() - self._stopped
        yield
        self._stopped = time.perf_counter()


class Clocked(NamedTuple):
    """An engine, and what it takes for the time."""

    engine: Engine
    clock: Clock


def _contenders(target: Path, draft: Path, stack: ExitStack) -> dict[str, Clocked]:
    made = {PLAIN: _engine(target, None, 0, False)}
    made |= {f"k = {k}": _engine(target, draft, k, False) for k in LENGTHS}
    made[ADAPTIVE] = _engine(target, draft, max(LENGTHS), True)
    clocks = {title: Clock() for title in made}
    for engine in made.values():
        stack.enter_context(engine)
        _share_weights(made[PLAIN], engine)
    learning = made[ADAPTIVE].proposer
    assert isinstance(learning, MixtureProposer)
    learning.watch.clock = clocks[ADAPTIVE]
    return {title: Clocked(engine, clocks[title]) for title, engine in made.items()}


def _engine(target: Path, draft: Path | None, k: int, adaptive: bool) -> Engine:
    speculation = {"draft_model": draft, "num_speculative_tokens": k} if draft else {}
    return Engine(
        EngineConfig(
            model=target,
            adaptive_speculation=adaptive,
            enable_prefix_caching=False,
            kv_cache_memory="512MiB",
            devices="cpu",
            **speculation,
        )
    )


def _share_weights(one: Engine, other: Engine) -> None:
    """The other computes with the same memory's: where they lie, some are read faster."""
    assert isinstance(one.target, ModelRunner) and isinstance(other.target, ModelRunner)
    other.target.model = one.target.model
    other.target.allocate(other.stats().blocks_total, other.config.block_size)


class Load:
    """Keeps so many requests going. The first ones' lengths differ, so that ends come evenly."""

    def __init__(self, of: Clocked, texts: Batch, concurrency: int, new_tokens: int) -> None:
        self._engine, self._clock = of
        self._coming = cycle(texts)
        self._longest = new_tokens
        self._going: set[str] = set()
        for place in range(1, 1 + concurrency):
            self._add(math.ceil(new_tokens * place / concurrency))

    def _add(self, tokens: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        self._going.add(self._engine.add_request(next(self._coming), params))

    def run(self, seconds: float) -> Run:
        """A turn, which ends with the step under way."""
        tokens, start = 0, time.perf_counter()
        with self._clock.going():
            while (elapsed := time.perf_counter() - start) < seconds:
                for output in self._engine.step():
                    tokens += len(output.token_ids)
                    if output.finish_reason:
                        self._going.remove(output.request_id)
                        self._add(self._longest)
        return Run(tokens, elapsed)

    def end(self) -> None:
        """Drops what is under way."""
        for request in self._going:
            self._engine.abort(request)


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


def _turns(
    what: str, loads: dict[str, Load], warm_up: float, seconds: float
) -> dict[str, list[Run]]:
    """Of each, one after the other, in an order that is drawn anew each time."""
    for load in loads.values():
        load.run(warm_up)
    turns: dict[str, list[Run]] = {title: [] for title in loads}
    order, names = random.Random(0), list(loads)
    console = Console(stderr=True)
    for _ in track(range(round(seconds / TURN)), description=what, console=console):
        order.shuffle(names)
        for name in names:
            turns[name].append(loads[name].run(TURN))
    for load in loads.values():
        load.end()
    return turns


def _speeds(turns: Sequence[Run]) -> dict[str, Any]:
    size = max(1, len(turns) // PARTS)
    parts = [turns[at : at + size] for at in range(0, len(turns), size)]
    return {
        "tokens_per_second": round(_speed(turns), 1),
        "by_part": [round(_speed(part), 1) for part in parts],
    }


def _speed(turns: Sequence[Run]) -> float:
    return sum(one.tokens for one in turns) / sum(one.seconds for one in turns)


def speeds(of: dict[str, Any]) -> dict[str, float]:
    """Tokens a second by contender, of one concurrency."""
    return {title: one["tokens_per_second"] for title, one in of.items()}


def rows_of(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Of a case, as COLUMNS: a row a concurrency, then the geometric means."""
    rows: list[tuple[str, ...]] = []
    for concurrency, of in found.items():
        got, ratio = speeds(of), Ratio(*of[ADAPTIVE]["of_the_best_other"])
        shown = f"{ratio.value:.2f}× ({ratio.low:.2f} to {ratio.high:.2f})"
        rows.append((concurrency, *(f"{got[title]:.0f}" for title in TITLES), shown))
    means = [
        statistics.geometric_mean(speeds(of)[title] for of in found.values()) for title in TITLES
    ]
    return [*rows, ("mean", *(f"{mean:.0f}" for mean in means), "")]


def _show(case: str, found: dict[str, Any]) -> None:
    show(f"{case}: tokens/s", ["requests", *COLUMNS], rows_of(found))


if __name__ == "__main__":
    typer.run(main)
