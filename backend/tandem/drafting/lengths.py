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
    """Its tokens cost levels of the model's draft too, not only rows of the pass."""


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
    drafts: Sequence[float] | None = None,
    once: float = 0.0,
    slack: float = 1.0,
    margin: float = 1.0,
) -> Outlook:
    """seconds: of rounds by the rows of their passes; drafts: of a model's draft for the whole
    batch, by its levels; once: that the model needs to catch up with the texts, spread over the
    drafts to come, and for whatever else comes with a draft of any length; slack: share of the best
    rate that is enough for a longer draft; margin: times the rate of none, that a draft must
    promise."""
    best, length, tokens = 1 / seconds[batch], 0, 1.0
    lengths, rates = [0], [best]
    rows, drafting = batch, once
    for count, gain in enumerate(gains, 1):
        tokens += gain
        rows += batch
        if drafts is not None:
            drafting = once + drafts[count]
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
    drafts: Sequence[float],
    options: Sequence[Option],
    slack: float = 1.0,
    besides: float = 0.0,
    margin: float = 1.0,
) -> Plan:
    """The lengths of all requests' drafts that should yield most; seconds, drafts and slack as in
    `outlook`, but slack where no model drafts, and no more of it than for one request. besides:
    seconds that a model's draft takes, however long it is; margin: times the rate of none, that it
    must promise.

    For every number of levels that the model could draft, the tokens at hand are taken in the order
    of their gains for as long as that raises the rate of the step.
    """
    batch = len(options)
    gains = np.array([gain for option in options for gain in option.gains])
    order = np.argsort(-gains, kind="stable")
    places = [
        place * option.by_model for option in options for place in range(1, 1 + len(option.gains))
    ]
    levels = np.array(places, np.int64)[order]
    depths = np.unique([0, *places])
    drafting = np.array(drafts)[depths] + besides * (depths > 0)
    near = levels <= depths[:, None]  # a row for each number of levels
    rates = _rates(seconds, drafting, gains[order], near, batch)
    best = rates.argmax()
    row, end = divmod(int(best), rates.shape[1])
    if row and rates.flat[best] <= margin * rates[0].max():
        row, end = 0, int(rates[0].argmax())
    rate = float(rates[row, end])
    if len(depths) == 1:  # no model drafts
        end = int(np.flatnonzero(rates[0] >= (1 - (1 - slack) / batch) * rate)[-1])
    owners = np.repeat(np.arange(batch), [len(option.gains) for option in options])[order]
    taken = owners[:end][near[row, :end]]
    return Plan(np.bincount(taken, minlength=batch).tolist(), rate)


def _rates(
    seconds: list[float],
    drafting: NDArray[np.float64],
    gains: NDArray[np.float64],
    near: NDArray[np.bool_],
    batch: int,
) -> NDArray[np.float64]:
    """[D, 1 + N] tokens a second where of N tokens the first 0, 1, 2, ... are taken, as far as they
    are `near` [D, N]. drafting [D]: seconds of the model's draft then."""
    tokens = np.full((len(near), 1 + len(gains)), float(batch))
    tokens[:, 1:] += (gains * near).cumsum(1)
    rows = np.full(tokens.shape, batch)
    rows[:, 1:] += near.cumsum(1)
    found: NDArray[np.float64] = tokens / (np.array(seconds)[rows] + drafting[:, None])
    return found
