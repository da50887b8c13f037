"""How far to speculate: the draft lengths that should yield most tokens a second in the long run.

A token is drafted where it should bring more than its time is worth: the tokens that rounds yield
in that time on average. To raise the rate of its own round is not enough, nor needed: rounds
differ, and a good one should be longer, a bad one over sooner (the stopping rule of renewal
processes, as for foraging: Charnov 1976).

Nothing here sees a drafted token, only what earlier drafts brought and what rounds have cost, so
that what is drafted or verified never depends on what is drawn (Leviathan et al. 2023, section 2.3,
asks no more of the lengths).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MEMORY = 0.98  # of rounds, after a new one
BEFOREHAND = 4.0  # rounds that count as if they had been seen


class Pace:
    """Tokens a request that rounds yield in the time of a round of plain decoding."""

    def __init__(self) -> None:
        self._tokens = self._time = BEFOREHAND

    def observe(self, tokens: float, time: float) -> None:
        """A round brought so many tokens a request; time: in rounds of plain decoding."""
        self._tokens = MEMORY * self._tokens + tokens
        self._time = MEMORY * self._time + time

    @property
    def tokens(self) -> float:
        """No less than one, for plain decoding would yield it."""
        return max(1.0, self._tokens / self._time)


class Outlook(NamedTuple):
    """What a method's draft should be worth to a request, if the whole batch did the same."""

    gains: list[float]
    """Chance that each of its tokens is kept, never rising."""
    lengths: list[int]
    """The best length where 0, 1, 2, ... tokens are at hand, and..."""
    values: list[float]
    """... the tokens that it should yield, less those that its time is worth."""


class Option(NamedTuple):
    """What a request may draft."""

    gains: list[float]
    """As in `Outlook`."""
    by_model: bool
    """Each token costs a level of the model's draft too, not only its row of the pass."""


def outlook(
    seconds: list[float],
    batch: int,
    gains: list[float],
    pace: float,
    level: float = 0.0,
    reading: float = 0.0,
    trust: float = 1.0,
    slack: float = 0.0,
) -> Outlook:
    """seconds: of rounds by the rows of their passes; pace: tokens a request that a round of plain
    decoding is worth; level: seconds of each of a model's levels, for the whole batch; reading:
    that the model needs to catch up with the text, spread over the drafts to come; trust: share of
    the tokens that is counted on; slack: share of a request's round that a longer draft may
    cost."""
    a_second = pace / seconds[batch]
    best, length, tokens = trust - pace, 0, trust
    lengths, values = [0], [best]
    rows, drafting = batch, reading
    for count, gain in enumerate(gains, 1):
        tokens += trust * gain
        rows += batch
        drafting += level
        value = tokens - a_second * (seconds[rows] + drafting)
        if value > best:
            best, length = value, count
        elif value > best - slack * pace:
            length = count
        lengths.append(length)
        values.append(best)
    return Outlook(gains, lengths, values)


def best_lengths(
    seconds: list[float],
    level: float,
    options: Sequence[Option],
    pace: float,
    slack: float = 0.0,
) -> list[int]:
    """The lengths of all requests' drafts that should be worth most; the rest as in `outlook`, but
    slack where no model drafts, and no more of it than for one request.

    For every number of levels that the model could draft, the tokens at hand are taken in the order
    of their gains for as long as that is worth their time.
    """
    batch = len(options)
    counts = [len(option.gains) for option in options]
    gains = np.array([gain for option in options for gain in option.gains])
    order = np.argsort(-gains, kind="stable")
    gains, owners = gains[order], np.repeat(np.arange(batch), counts)[order]
    a_second = pace * batch / seconds[batch]
    if not any(option.by_model for option in options):
        return _taken(seconds, a_second, gains, owners, batch, slack * pace)[0]
    places = [
        place * option.by_model for option in options for place in range(1, 1 + len(option.gains))
    ]
    levels = np.array(places, np.int64)[order]
    found = []
    for depth in {0, *places}:
        near = levels <= depth
        lengths, value = _taken(seconds, a_second, gains[near], owners[near], batch)
        found.append((value - a_second * level * depth, lengths))
    return max(found)[1]


def _taken(
    seconds: list[float],
    a_second: float,
    gains: NDArray[np.float64],
    owners: NDArray[np.int64],
    batch: int,
    slack: float = 0.0,
) -> tuple[list[int], float]:
    """How many of these tokens to take of each request, the first ones first, and their worth, or
    that of fewer, which is up to `slack` more. owners: whose each of them is."""
    tokens = np.empty(1 + len(gains))
    tokens[0], tokens[1:] = batch, gains
    values = tokens.cumsum() - a_second * np.array(seconds[batch : batch + len(tokens)])
    best = float(values.max())
    end = int(np.flatnonzero(values >= best - slack)[-1])
    return np.bincount(owners[:end], minlength=batch).tolist(), best
