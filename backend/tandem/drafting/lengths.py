"""How far to speculate: the draft lengths of a step that should yield most tokens a second.

Nothing here sees a drafted token, only what earlier drafts brought and what rounds have cost, so
that what is drafted or verified never depends on what is drawn (Leviathan et al. 2023, section 2.3,
asks no more of the lengths).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tandem.drafting.costs import RoundCosts


class Option(NamedTuple):
    """What a method would draft for a request."""

    gains: list[float]
    """Chance that each of its tokens is kept, never rising."""
    by_model: bool
    """Each token costs a level of the model's draft too, not only its row of the pass."""


class Plan(NamedTuple):
    """What a step is to draft."""

    lengths: list[int]
    """Tokens for each request; zero where a draft would not pay."""
    rate: float
    """Tokens a second that it should yield."""


class _Token(NamedTuple):
    """One that could be drafted."""

    gain: float
    owner: int
    level: int
    """Of the model's draft; 0: a lookup's."""


def rate(costs: RoundCosts, batch: int, option: Option) -> float:
    """Tokens a second and request at the option's best length, if the whole batch did the same."""
    level = costs.level(batch) if option.by_model else 0.0
    best, tokens = 1 / costs.of_pass(batch), 1.0
    for length, gain in enumerate(option.gains, 1):
        tokens += gain
        best = max(best, tokens / (costs.of_pass(batch * (1 + length)) + level * length))
    return best


def best_lengths(costs: RoundCosts, options: Sequence[Option]) -> Plan:
    """The lengths of all requests' drafts that should yield most.

    For every number of levels that the model could draft, the tokens at hand are taken in the order
    of their gains for as long as that raises the rate of the step.
    """
    tokens = sorted(
        (
            _Token(gain, owner, place * option.by_model)
            for owner, option in enumerate(options)
            for place, gain in enumerate(option.gains, 1)
        ),
        key=lambda token: -token.gain,
    )
    level = costs.level(max(1, sum(option.by_model for option in options)))
    best, rate, deepest = 0, 0.0, 0
    for depth in sorted({0, *(token.level for token in tokens)}):
        gains = (token.gain for token in tokens if token.level <= depth)
        count, found = _best_count(costs, len(options), gains, level * depth)
        if found > rate:
            best, rate, deepest = count, found, depth
    lengths = [0] * len(options)
    for token in [token for token in tokens if token.level <= deepest][:best]:
        lengths[token.owner] += 1
    return Plan(lengths, rate)


def _best_count(
    costs: RoundCosts, batch: int, gains: Iterable[float], drafting: float
) -> tuple[int, float]:
    """How many of the tokens to take, and the rate then; `drafting` takes its seconds anyway."""
    best, expected = 0, float(batch)
    rate = expected / (costs.of_pass(batch) + drafting)
    for count, gain in enumerate(gains, 1):
        expected += gain
        found = expected / (costs.of_pass(batch + count) + drafting)
        if found > rate:
            best, rate = count, found
    return best, rate
