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

from tandem.drafting.times import BLOCKS

NOTHING_TAKEN = 2.0
# Times the rate of one length for all, that requests' own must promise: the best of many guesses is
# on average too good, and deep levels for one of them alone yield less than they promise.
OWN_LENGTHS = 1.1
ALIKE_GAINS = 1.15  # times the gains of another's draft: so near, each has the other's length
ENOUGH_WORSE = 2  # depths behind the best one, that end the search
JUMP = 0.03  # of a round, that a row adds before which drafts should rather end, and...
STEEP = 4.0  # ... times what each of the rows before it does, ...
GENTLE = 8  # ... so many
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
    levels: int
    """Most of the model's; 0: it does not draft."""
    least: float
    """Gain between that of the last token taken and of the next one."""

    def joined(self, option: Option) -> int:
        """What the model drafts for a request that comes later, or a round later: its tokens that
        gain more, and no more levels than there are anyway."""
        return sum([gain >= self.least for gain in option.gains[: self.levels]])


NONE_FOR_ALL = Plan([], 0.0, 0, NOTHING_TAKEN)
"""Where there is no one length for all."""


def of_one(option: Option, length: int, rate: float) -> Plan:
    """One request's draft of so many tokens, in a step that should yield so many a second."""
    least = NOTHING_TAKEN
    if length:
        least = midway(option.gains[length - 1], option.gains[length:])
    return Plan([length], rate, length * option.by_model, least)


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
    and that promises next to nothing more than one length for all of them, it is this (and it is
    not looked for, where all drafts gain about the same). Plain numbers, as of passes
    (`times.Times`).
    """
    one_for_all = all(option.by_model or not option.gains for option in options)
    same = _one_length(seconds, drafts, options, besides) if one_for_all else NONE_FOR_ALL
    pays = same.rate > margin * len(options) / seconds[len(options)]
    least = OWN_LENGTHS * same.rate
    if pays and (_are_alike(options) or _at_most(seconds, drafts, options, besides) < least):
        return same
    own = _own_lengths(seconds, drafts, options, slack, besides, margin)
    return same if pays and any(own.lengths) and own.rate < least else own


def _are_alike(options: Sequence[Option]) -> bool:
    """So that lengths of their own would yield next to nothing more: at the first place and at the
    last one, which is the same."""
    gains = [option.gains for option in options]
    longest = len(gains[0])
    if not longest or any(len(one) != longest for one in gains):
        return False
    ends = [one[0] for one in gains], [one[-1] for one in gains]
    return all(max(end) <= ALIKE_GAINS * min(end) for end in ends)


def _at_most(
    seconds: list[float], drafts: Sequence[float], options: Sequence[Option], besides: float
) -> float:
    """A rate that lengths of their own do not exceed, where a model drafts for all, and each level
    takes as long: as if the best tokens stood at the first levels."""
    batch, drafting = len(options), sum(option.by_model for option in options)
    gains = sorted([gain for option in options for gain in option.gains], reverse=True)
    levels = range(1, 1 + -(-len(gains) // drafting))
    each = [_levels(drafts, depth, drafting, besides) for depth in levels]
    times = [one for one in each for _ in range(drafting)]
    sums = list(accumulate(gains, initial=float(batch)))[1:]
    rates = [
        total / (one + whole + a_token * count)
        for count, (total, one, (whole, a_token)) in enumerate(
            zip(sums, seconds[batch + 1 :], times, strict=False), 1
        )
    ]
    return max(rates, default=0.0)


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
    near = [one for one in tokens if not one.level]
    rates = _rates(seconds, _Levels(), near, batch)
    rate, taken = max(rates), near[: _taken(rates, 1.0 if drafting else _in_a_batch(slack, batch))]
    least, worse, levels = margin * rate, 0, 0
    for depth in range(1, 1 + max([one.level for one in tokens], default=0)):
        some = [one for one in tokens if one.level <= depth]
        rates = _rates(seconds, _levels(drafts, depth, drafting, besides), some, batch)
        best = max(rates)
        if best > max(rate, least):
            rate, worse, levels = best, 0, depth
            taken = some[: rates.index(rate)]
        elif rate > least:  # some depth has paid: deeper ones do worse and worse
            worse += 1
            if worse == ENOUGH_WORSE:
                break
    lengths = [0] * batch
    for token in taken:
        lengths[token.owner] += 1
    beside = [one.gain for one in tokens if one.level <= levels][len(taken) :]
    left = [*beside[:1], *(one.gain for one in tokens if one.level > levels)]
    return Plan(lengths, rate, levels, midway(taken[-1].gain, left) if taken else NOTHING_TAKEN)


def midway(last: float, left: Sequence[float]) -> float:
    """The gain between that of the last token taken and the best of those that were left: where
    there are none, which would still have paid is not known."""
    return (last + min(last, max(left, default=0.0))) / 2


def with_finds(
    plan: Plan,
    seconds: list[float],
    drafts: Sequence[float],
    options: Sequence[Option],
    slack: float = 1.0,
    besides: float = 0.0,
) -> Plan:
    """As `best_lengths`, but a model drafts as it did in `plan`, and of what lookups have is taken
    what pays beside that."""
    lengths = [plan.joined(option) if option.by_model else 0 for option in options]
    batch, drafted, model = len(options), sum(lengths), 0.0
    drafting = sum([option.by_model for option in options])
    expected = float(batch)
    if drafted:
        expected += sum([sum(one.gains[:n]) for one, n in zip(options, lengths, strict=True) if n])
        whole, a_token = _levels(drafts, max(lengths), drafting, besides)
        model = whole + drafted * a_token
    finds = [([], True) if one.by_model else one for one in options]
    found = [(gain, owner) for owner, (gains, _) in enumerate(finds) for gain in gains]
    found.sort(reverse=True)
    sums = accumulate([gain for gain, _ in found], initial=expected)
    rows = zip(sums, seconds[batch + drafted :], strict=False)
    rates = [total / (one + model) for total, one in rows]
    for _, owner in found[: _taken(rates, 1.0 if drafting else _in_a_batch(slack, batch))]:
        lengths[owner] += 1
    return plan._replace(lengths=lengths, rate=max(rates))


def _in_a_batch(slack: float, batch: int) -> float:
    """No more of it than for one request."""
    return 1 - (1 - slack) / batch


def _taken(rates: Sequence[float], enough: float) -> int:
    """How many tokens to take; enough: share of the best rate, for more of them."""
    best = max(rates)
    if enough == 1:
        return rates.index(best)
    return max(place for place, one in enumerate(rates) if one >= enough * best)


def _one_length(
    seconds: list[float], drafts: Sequence[float], options: Sequence[Option], besides: float
) -> Plan:
    """The best one for all, as far as each may draft."""
    batch = len(options)
    best, rows, tokens = NONE_FOR_ALL, batch, float(batch)
    for count in range(1, 1 + max(len(option.gains) for option in options)):
        gains = [option.gains[count - 1] for option in options if len(option.gains) >= count]
        rows, tokens = rows + len(gains), tokens + sum(gains)
        rate = tokens / (seconds[rows] + drafts[count] + besides)
        if rate > best.rate:
            lengths = [min(count, len(option.gains)) for option in options]
            left = [option.gains[count] for option in options if len(option.gains) > count]
            best = Plan(lengths, rate, count, midway(min(gains), left))
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


def brim(seconds: Sequence[float], rows: int, most: int) -> int:
    """The last of some rows, from `rows` to `most`, before one that begins another block, where
    that takes far longer than the rows before it did. seconds: of rounds by their rows."""
    for last in BLOCKS:
        if rows <= last < most:
            jump, before = seconds[last + 1] - seconds[last], seconds[last] - seconds[last - GENTLE]
            if jump > max(JUMP * seconds[last], STEEP * before / GENTLE):
                return last
    return most


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
