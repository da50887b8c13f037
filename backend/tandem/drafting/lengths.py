"""How far to speculate: the draft lengths of a step that should yield most tokens a second.

Nothing here sees a drafted token, only what earlier drafts brought and what rounds have cost, so
that what is drafted or verified never depends on what is drawn (Leviathan et al. 2023, section 2.3,
asks no more of the lengths).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple


class Option(NamedTuple):
    """What a method would draft for a request."""

    gains: list[float]
    """Chance that each of its tokens is kept, never rising."""
    by_model: bool
    """Each token costs a level of the model's draft too, not only its row of the pass."""
    reading: float = 0.0
    """Seconds that the model needs to catch up with the text, spread over the rounds to come."""


class Plan(NamedTuple):
    """What a step is to draft."""

    lengths: list[int]
    """Tokens for each request; zero where a draft would not pay."""
    rate: float
    """Tokens a second that it should yield."""


def rate(seconds: list[float], level: float, batch: int, option: Option) -> float:
    """Tokens a second and request at the option's best length, if the whole batch did the same.

    seconds: of passes by their rows; level: of each of the model's levels, for the whole batch.
    """
    best, tokens = 1 / seconds[batch], 1.0
    drafting = option.reading
    rows, more = batch, level if option.by_model else 0.0
    for gain in option.gains:
        tokens += gain
        rows += batch
        drafting += more
        found = tokens / (seconds[rows] + drafting)
        if found > best:
            best = found
    return best


def best_lengths(seconds: list[float], level: float, options: Sequence[Option]) -> Plan:
    """The lengths of all requests' drafts that should yield most; seconds and level as in `rate`.

    For every number of levels that the model could draft, the tokens at hand are taken in the order
    of their gains for as long as that raises the rate of the step.
    """
    tokens = sorted(
        [
            (-gain, owner, place if option.by_model else 0)
            for owner, option in enumerate(options)
            for place, gain in enumerate(option.gains, 1)
        ],
        key=itemgetter(0),
    )
    best, rate, deepest = 0, 0.0, 0
    for depth in sorted({0, *map(itemgetter(2), tokens)}):
        losses = [loss for loss, _, level_of in tokens if level_of <= depth]
        count, found = _best_count(seconds, len(options), losses, level * depth)
        if found > rate:
            best, rate, deepest = count, found, depth
    lengths = [0] * len(options)
    for _, owner, _ in [token for token in tokens if token[2] <= deepest][:best]:
        lengths[owner] += 1
    return Plan(lengths, rate)


def _best_count(
    seconds: list[float], batch: int, losses: list[float], drafting: float
) -> tuple[int, float]:
    """How many of the tokens to take, and the rate then; `drafting` takes its seconds anyway.

    losses: the gains, negative.
    """
    best, expected = batch, float(batch)
    rate = expected / (seconds[batch] + drafting)
    for rows, loss in enumerate(losses, batch + 1):
        expected -= loss
        found = expected / (seconds[rows] + drafting)
        if found > rate:
            best, rate = rows, found
    return best - batch, rate
