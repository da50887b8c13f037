"""How far to speculate: the draft lengths of a step that should yield most tokens a second.

Nothing here sees a drafted token, only what earlier drafts brought and what rounds have cost, so
that what is drafted or verified never depends on what is drawn (Leviathan et al. 2023, section 2.3,
asks no more of the lengths).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

NOTHING_TAKEN = 2.0
# Times the rate of one length for all, that requests' own must promise: the best of many guesses is
# on average too good.
OWN_LENGTHS = 1.01
LEVEL_TOKENS = 8  # tokens that take a model as long as what is done once a level


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
    least: float
    """Gain of the last token taken; above 1 where there is none."""

    def joined(self, option: Option) -> int:
        """The length for a request that comes later: its tokens that gain as much, and for a model
        no more levels than there are anyway."""
        most = max(self.lengths) if option.by_model else len(option.gains)
        return sum(gain >= self.least for gain in option.gains[:most])


def outlook(
    seconds: list[float],
    batch: int,
    gains: list[float],
    drafts: Sequence[float] | None = None,
    besides: float = 0.0,
    slack: float = 1.0,
    margin: float = 1.0,
    reading: float = 0.0,
) -> Outlook:
    """seconds: of rounds by the rows of their passes; drafts: of a model's draft for the whole
    batch, by its levels; besides: that such a draft takes, however long it is; slack: share of the
    best rate that is enough for a longer draft; margin: times the rate of none, that a draft must
    promise; reading: seconds that the model needs to catch up with the texts, spread over the
    tokens to come."""
    best, length, tokens = 1 / seconds[batch], 0, 1.0
    lengths, rates = [0], [best]
    rows, drafting = batch, besides
    for count, gain in enumerate(gains, 1):
        tokens += gain
        rows += batch
        if drafts is not None:
            drafting = besides + drafts[count] + batch * tokens * reading
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
    of their gains for as long as that raises the rate of the step. Where a model drafts for all,
    and that promises next to nothing more than one length for all of them, it is this. Plain
    numbers, as of passes (`times.Times`).
    """
    own = _own_lengths(seconds, drafts, options, slack, besides, margin)
    if any(own.lengths) and all(option.by_model for option in options):
        same = _one_length(seconds, drafts, options, besides)
        if own.rate < OWN_LENGTHS * same.rate:
            return same
    return own


def _own_lengths(
    seconds: list[float],
    drafts: Sequence[float],
    options: Sequence[Option],
    slack: float,
    besides: float,
    margin: float,
) -> Plan:
    """As `best_lengths`, whatever one length for all promises."""
    batch, drafting = len(options), sum(option.by_model for option in options)
    tokens = sorted(_tokens(options), key=itemgetter(0), reverse=True)
    taken, rate = _of_lookups(seconds, tokens, batch, slack)
    least = margin * rate
    for depth in sorted({one.level for one in tokens} - {0}):
        some = [one for one in tokens if one.level <= depth]
        rates = _rates(seconds, _levels(drafts, depth, drafting, besides), some, batch)
        if max(rates) > max(rate, least):
            rate = max(rates)
            taken = some[: rates.index(rate)]
    lengths = [0] * batch
    for token in taken:
        lengths[token.owner] += 1
    return Plan(lengths, rate, taken[-1].gain if taken else NOTHING_TAKEN)


def _of_lookups(
    seconds: list[float], tokens: Sequence[_Token], batch: int, slack: float
) -> tuple[Sequence[_Token], float]:
    """Those to take where no model drafts, and the best rate."""
    near = [one for one in tokens if not one.level]
    rates = _rates(seconds, _Levels(), near, batch)
    best = max(rates)
    end = rates.index(best)
    if len(near) == len(tokens):  # there is none
        enough = (1 - (1 - slack) / batch) * best
        end = max(place for place, one in enumerate(rates) if one >= enough)
    return near[:end], best


def _one_length(
    seconds: list[float], drafts: Sequence[float], options: Sequence[Option], besides: float
) -> Plan:
    """The best one for all, as far as each may draft."""
    batch = len(options)
    best, rows, tokens = Plan([], 0.0, NOTHING_TAKEN), batch, float(batch)
    for count in range(1, 1 + max(len(option.gains) for option in options)):
        gains = [option.gains[count - 1] for option in options if len(option.gains) >= count]
        rows, tokens = rows + len(gains), tokens + sum(gains)
        rate = tokens / (seconds[rows] + drafts[count] + besides)
        if rate > best.rate:
            lengths = [min(count, len(option.gains)) for option in options]
            best = Plan(lengths, rate, min(gains))
    return best


class _Token(NamedTuple):
    """One that may be drafted."""

    gain: float
    level: int
    """Of the model's draft; 0: a lookup has it."""
    owner: int


def _tokens(options: Sequence[Option]) -> Iterator[_Token]:
    for owner, (gains, by_model) in enumerate(options):
        for place, gain in enumerate(gains, 1):
            yield _Token(gain, place * by_model, owner)


class _Levels(NamedTuple):
    """Seconds of a model's draft of some levels."""

    whole: float = 0.0
    a_token: float = 0.0


def tokens_share(requests: int) -> float:
    """Of the time of a draft's level for so many requests, that goes by the tokens that it drafts
    rather than by itself: few requests go to the deepest levels."""
    return requests / (LEVEL_TOKENS + requests)


def _levels(drafts: Sequence[float], depth: int, requests: int, besides: float) -> _Levels:
    """drafts: where all of the requests go as far."""
    beginning = max(0.0, 2 * drafts[1] - drafts[2]) if len(drafts) > 2 else 0.0
    shared = tokens_share(requests) * (drafts[depth] - beginning)
    return _Levels(drafts[depth] - shared + besides, shared / (requests * depth))


def _rates(
    seconds: list[float], drafting: _Levels, tokens: Sequence[_Token], batch: int
) -> list[float]:
    """Tokens a second where the first 0, 1, 2, ... are taken."""
    sums = accumulate([one.gain for one in tokens], initial=float(batch))
    drafted = accumulate([one.level > 0 for one in tokens], initial=0)
    whole, a_token = drafting
    return [
        total / (one + whole + a_token * count)
        for total, one, count in zip(sums, seconds[batch:], drafted, strict=False)
    ]
