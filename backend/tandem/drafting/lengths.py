"""How far to speculate: the draft lengths of a step that should yield most tokens a second.

Nothing here sees a drafted token, only what earlier drafts brought and what rounds have cost, so
that what is drafted or verified never depends on what is drawn (Leviathan et al. 2023, section 2.3,
asks no more of the lengths).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tandem.drafting.costs import RoundCosts
from tandem.drafting.gains import Curve


class Option(NamedTuple):
    """What a method would draft for a request."""

    gains: Curve
    """Chance that each of its tokens is kept, never rising."""
    by_model: bool
    """Each token costs a level of the model's draft; otherwise only its row of the pass."""


class Plan(NamedTuple):
    """What a step is to draft."""

    lengths: list[int]
    """Tokens for each request; zero where a draft would not pay."""
    rate: float
    """Tokens a second that it should yield."""


def rate(costs: RoundCosts, batch: int, option: Option) -> float:
    """Tokens a second and request at the option's best length, if the whole batch did the same."""
    lengths = np.arange(len(option.gains) + 1)
    seconds = costs.passes(batch * (1 + lengths))
    if option.by_model:
        seconds = seconds + costs.level(batch) * lengths
    tokens = 1 + np.concatenate([[0], np.cumsum(option.gains)])
    return float((tokens / seconds).max())


def best_lengths(costs: RoundCosts, options: Sequence[Option]) -> Plan:
    """The lengths of all requests' drafts that should yield most.

    For every number of levels that the model could draft, the tokens at hand are taken in the order
    of their gains for as long as that raises the rate of the step.
    """
    batch = len(options)
    lengths = np.array([len(option.gains) for option in options])
    gains = np.concatenate([option.gains for option in options])
    level = np.concatenate([np.arange(1, n + 1) for n in lengths])
    by_model = np.repeat([option.by_model for option in options], lengths)
    order = np.argsort(-gains, kind="stable")
    depth = np.where(by_model, level, 0)[order]
    depths = np.unique(np.concatenate([[0], depth]))[:, None]
    within = np.concatenate([np.ones((len(depths), 1), bool), depth <= depths], 1)
    tokens = batch + np.cumsum(within * np.concatenate([[0], gains[order]]), 1)
    drafting = costs.level(max(1, sum(option.by_model for option in options))) * depths
    rates = tokens / (costs.passes(batch - 1 + np.cumsum(within, 1)) + drafting)
    deepest, count = np.unravel_index(np.argmax(rates), rates.shape)
    chosen = order[:count][within[deepest, 1 : count + 1]]
    owners = np.repeat(np.arange(batch), lengths)
    return Plan(np.bincount(owners[chosen], minlength=batch).tolist(), float(rates.max()))
