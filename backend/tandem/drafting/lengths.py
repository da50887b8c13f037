"""How far to speculate: the draft lengths of a step that should yield most tokens a second.

Nothing here sees a drafted token, only what earlier drafts brought and what rounds have cost, so
that what is drafted or verified never depends on what is drawn (Leviathan et al. 2023, section 2.3,
asks no more of the lengths).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Outlook(NamedTuple):
    """What a method's draft should be worth to a request, if the whole batch did the same."""

    gains: list[float]
    """Chance that each of its tokens is kept, never rising."""
    lengths: list[int]
    """The best length where 0, 1, 2, ... tokens are at hand, and..."""
    rates: list[float]
    """... the tokens a second and request that it should yield."""


class Option(NamedTuple):
    """What a request may draft."""

    gains: list[float]
    """As in `Outlook`."""
    by_model: bool
    """Each token costs a level of the model's draft too, not only its row of the pass."""


class Plan(NamedTuple):
    """What a step is to draft."""

    lengths: list[int]
    """Tokens for each request; zero where a draft would not pay."""
    rate: float
    """Tokens a second that it should yield."""


def outlook(
    seconds: list[float],
    batch: int,
    gains: list[float],
    level: float = 0.0,
    reading: float = 0.0,
    slack: float = 1.0,
    margin: float = 1.0,
) -> Outlook:
    """seconds: of rounds by the rows of their passes; level: of each of a model's levels, for the
    whole batch; reading: that the model needs to catch up with the texts, spread over the drafts
    to come, and for whatever else comes but once a draft; slack: share of the best rate that is
    enough for a longer draft; margin: times the rate of none, that a draft must promise."""
    best, length, tokens = 1 / seconds[batch], 0, 1.0
    lengths, rates = [0], [best]
    rows, drafting = batch, reading
    for count, gain in enumerate(gains, 1):
        tokens += gain
        rows += batch
        drafting += level
        rate = tokens / (seconds[rows] + drafting)
        if rate > (best if length else margin * best):
            best, length = rate, count
        elif slack < 1 and rate > slack * best:
            length = count
        lengths.append(length)
        rates.append(best)
    return Outlook(gains, lengths, rates)


def best_lengths(
    seconds: list[float],
    level: float,
    options: Sequence[Option],
    slack: float = 1.0,
    besides: float = 0.0,
    margin: float = 1.0,
) -> Plan:
    """The lengths of all requests' drafts that should yield most; seconds, level and slack as in
    `outlook`, but slack where no model drafts, and no more of it than for one request. besides:
    seconds that a model's draft takes, however long it is; margin: times the rate of none, that it
    must promise.

    For every number of levels that the model could draft, the tokens at hand are taken in the order
    of their gains for as long as that raises the rate of the step.
    """
    batch = len(options)
    counts = [len(option.gains) for option in options]
    gains = np.array([gain for option in options for gain in option.gains])
    order = np.argsort(-gains, kind="stable")
    gains, owners = gains[order], np.repeat(np.arange(batch), counts)[order]
    if not any(option.by_model for option in options):
        return _taken(seconds, 0.0, gains, owners, batch, 1 - (1 - slack) / batch)
    places = [
        place * option.by_model for option in options for place in range(1, 1 + len(option.gains))
    ]
    levels = np.array(places, np.int64)[order]

    def plan(depth: int) -> Plan:
        near = levels <= depth
        drafting = besides + level * depth if depth else 0.0
        return _taken(seconds, drafting, gains[near], owners[near], batch)

    without = plan(0)
    best = max(map(plan, {*places} - {0}), key=lambda one: one.rate, default=without)
    return best if best.rate > margin * without.rate else without


def _taken(
    seconds: list[float],
    drafting: float,
    gains: NDArray[np.float64],
    owners: NDArray[np.int64],
    batch: int,
    slack: float = 1.0,
) -> Plan:
    """How many of these tokens to take, the first ones first. owners: whose each of them is."""
    tokens = np.empty(1 + len(gains))
    tokens[0], tokens[1:] = batch, gains
    rates = tokens.cumsum() / (np.array(seconds[batch : batch + len(tokens)]) + drafting)
    best = float(rates.max())
    end = int(np.flatnonzero(rates >= slack * best)[-1])
    return Plan(np.bincount(owners[:end], minlength=batch).tolist(), best)
