"""Engines under load, in turns: as behind a load generator that keeps so many requests going, one
that ends is followed by another. Each contender has an engine of its own, all with the same target
in memory (drafts and heads are each engine's own), and they take turns of a tenth of a second: what
slows the machine down for a while slows all of them.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track

from benchmarks.common import MODELS, Batch, Run, prompts
from tandem import Engine, EngineConfig, SamplingParams
from tandem.drafting.mixture import MixtureProposer
from tandem.runners.model_runner import ModelRunner
from tandem.tokenizer import Tokenizer

TURN = 0.1  # seconds
PARTS = 5  # of the turns, whose figures show how far they differ
MOST = 64  # requests at once


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


def started(engines: Mapping[str, Engine], stack: ExitStack) -> dict[str, Clocked]:
    """With the first one's weights, until the stack is left. One that adapts goes by a clock of its
    own."""
    first, *_ = engines.values()
    found = {}
    for title, engine in engines.items():
        stack.enter_context(engine)
        _share_weights(first, engine)
        found[title] = Clocked(engine, Clock())
        if isinstance(engine.proposer, MixtureProposer):
            engine.proposer.watch.clock = found[title].clock
    return found


def engine_of(target: Path, **parameters: Any) -> Engine:
    """On CPUs, which always drafts as far as it may unless it is told otherwise."""
    usual = {"adaptive_speculation": False, "kv_cache_memory": "512MiB", "devices": "cpu"}
    return Engine(
        EngineConfig(model=target, enable_prefix_caching=False, **{**usual, **parameters})
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


def texts_of(kind: str) -> list[list[int]]:
    """As many as the largest batch. kind: `easy` ones repeat themselves, `mixed` are half that and
    half held-out, and others are held-out code."""
    tokenizer = Tokenizer(MODELS / "target")
    easy, hard = (prompts(of, MOST) for of in ("repetitive", "heldout"))
    if kind == "mixed":
        texts = [text for pair in zip(easy, hard, strict=False) for text in pair]
    else:
        texts = easy if kind == "easy" else hard
    return [tokenizer.encode(texts[place % len(texts)]) for place in range(MOST)]


def take_turns(
    what: str, loads: dict[str, Load], warm_up: float, seconds: float
) -> dict[str, list[Run]]:
    """Of each, one after the other, in an order that is drawn anew each time. what: that is
    measured, which is shown meanwhile; warm_up, seconds: of each."""
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


def measured(turns: Sequence[Run]) -> dict[str, Any]:
    """A contender's tokens a second, and the same of parts of its turns."""
    size = max(1, len(turns) // PARTS)
    parts = [turns[at : at + size] for at in range(0, len(turns), size)]
    return {
        "tokens_per_second": round(_speed(turns), 1),
        "by_part": [round(_speed(part), 1) for part in parts],
    }


def _speed(turns: Sequence[Run]) -> float:
    return sum(one.tokens for one in turns) / sum(one.seconds for one in turns)
