"""One contender against the best of the others, where all took turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import Run

RESAMPLED = 1000
BOUNDS = (5, 95)  # percentiles


class Ratio(NamedTuple):
    """Of tokens a second."""

    value: float
    low: float
    """Nine of ten values lie between these when turns are drawn anew from those that were
    (bootstrap)."""
    high: float


def against_best(turns: Mapping[str, Sequence[Run]], one: str) -> Ratio:
    """`one` by the best of the others; every contender has as many turns, in rounds.

    The best of several noisy figures looks better than it is. So who it is is decided by one half
    of the rounds, and by how much in the others; and the other way round. The halves are drawn
    many times: where every second round has prompts to read, every second one is no fair half.
    """
    runs = {name: np.array([(run.tokens, run.seconds) for run in turns[name]]) for name in turns}
    draws, count = np.random.default_rng(0), len(runs[one])
    found, drawn = list[float](), list[float]()
    for _ in range(RESAMPLED):
        halves = np.array_split(draws.permutation(count), 2)
        found.append(_crossed(runs, one, *halves))
        drawn.append(_crossed(runs, one, *(draws.choice(half, len(half)) for half in halves)))
    low, high = np.percentile(drawn, BOUNDS)
    return Ratio(float(np.exp(np.mean(np.log(found)))), float(low), float(high))


def _crossed(
    runs: Mapping[str, NDArray[np.float64]],
    one: str,
    half: NDArray[np.int64],
    other: NDArray[np.int64],
) -> float:
    """The geometric mean of both ways."""
    first, second = (_speeds(runs, rounds) for rounds in (half, other))
    return float(np.sqrt(_ratio(first, second, one) * _ratio(second, first, one)))


def _speeds(runs: Mapping[str, NDArray[np.float64]], rounds: NDArray[np.int64]) -> dict[str, float]:
    sums = {name: turns[rounds].sum(0) for name, turns in runs.items()}
    return {name: tokens / seconds for name, (tokens, seconds) in sums.items()}


def _ratio(deciding: Mapping[str, float], comparing: Mapping[str, float], one: str) -> float:
    best = max((name for name in deciding if name != one), key=deciding.__getitem__)
    return comparing[one] / comparing[best]
