"""When rounds began and ended. What follows for their costs is worked out now and then: behind a
pass, which has driven all else from the processor's caches, each line is slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tandem.drafting.costs import Load, RoundCosts
from tandem.drafting.lengths import tokens_share

FIRST = 64  # rounds, from which is learnt as soon as may be, and then...
TOGETHER = 6  # ... from so many at once, where the model drafted in all of them


class Begun(NamedTuple):
    """A round under way."""

    load: Load
    first: str
    """Of its requests. Where it goes on, nothing was waited for in between."""
    by_model: bool
    """Whether the model drafted."""
    rows: int
    """To be verified."""
    follows: bool = True
    """Whether it came right behind the last one that was timed."""
    asking: float = 0.0
    """Seconds in which lookups were asked and what they found was planned with, which is judged by
    itself."""
    ahead: bool = False
    """Whether beside its pass the next rounds are planned."""


class _Drafted(NamedTuple):
    """A model's draft."""

    levels: Sequence[int]
    """Of each request that it was for."""
    seconds: float
    read: int
    """Tokens of their texts."""

    def tell(self, costs: RoundCosts, usual: bool) -> None:
        requests = len(self.levels)
        share = tokens_share(requests)
        levels = (1 - share) * max(self.levels) + share * sum(self.levels) / requests
        costs.observe_draft(requests, levels, self.seconds, self.read, usual)


class _Round(NamedTuple):
    """One that has ended."""

    begun: Begun
    drafted: _Drafted | None
    """By the model."""
    alone: bool
    """Whether its pass did nothing but verify: one that read prompts says nothing of others."""
    usual: bool
    """Whether what it took is what such rounds take: behind a request that has come or gone the
    processor is at work for it too, whatever is drafted; behind rounds that were not timed, that is
    not known."""
    shows: bool
    """Whether its pass shows what such passes take."""
    seconds: float
    """Of its pass."""
    ended: float

    def goes_on(self, last: _Round) -> bool:
        """Whether between the other one and this nothing was waited for, nor done that is not of
        such rounds: behind a draft there is more to commit and to learn from."""
        same = self.begun.follows and last.begun.first == self.begun.first
        return same and (self.begun.by_model or not last.begun.by_model)

    def beside(self, last: _Round) -> float:
        """Seconds since the other one ended, but for its pass, the model's draft and lookups."""
        drafting = 0.0 if self.drafted is None else self.drafted.seconds
        known = self.seconds + drafting + self.begun.asking
        return max(0.0, self.ended - last.ended - known)


class Stopwatch:
    """Times rounds, and tells their costs."""

    def __init__(self, costs: RoundCosts, clock: Callable[[], float]) -> None:
        self.costs = costs
        self.clock = clock
        self._rounds: list[_Round] = []
        self._drafted: _Drafted | None = None
        """In the round under way."""
        self._last: _Round | None = None
        """The last round learnt from."""
        self._learnt = 0
        """Rounds learnt from."""

    def drafted(self, levels: Sequence[int], seconds: float, read: int) -> None:
        """A model's draft of so many levels for each of some requests took so long; it has read so
        many tokens for them before."""
        self._drafted = _Drafted(levels, seconds, read)

    def ended(self, begun: Begun, rows: int, seconds: float) -> bool:
        """A round has ended, whose pass over so many rows took so long. Whether it shows what such
        passes take."""
        last, alone = self._rounds[-1] if self._rounds else self._last, begun.rows == rows
        same = last is None or (last.alone and last.begun.load.requests == begun.load.requests)
        usual = same and begun.follows
        # a draft has left other things in the caches
        rests = last is not None and last.begun.by_model and not begun.by_model
        shows = alone and usual and not rests and not begun.ahead
        drafted, self._drafted = self._drafted if begun.by_model else None, None
        self._rounds.append(_Round(begun, drafted, alone, usual, shows, seconds, self.clock()))
        return shows

    def learn(self) -> None:
        """From what was timed since the last time, if that is not little, and more of the same."""
        same = all(one.begun.by_model for one in self._rounds)
        if same and len(self._rounds) < TOGETHER and self._learnt >= FIRST:
            return
        self._learnt += len(self._rounds)
        for one in self._rounds:
            begun, last = one.begun, self._last
            if last is not None and one.goes_on(last):
                beside = one.beside(last)
                self.costs.between.observe(begun.load.requests, beside, begun.by_model)
            self.costs.observe_pass(begun.load, begun.rows if one.shows else None, one.seconds)
            if one.drafted is not None:
                one.drafted.tell(self.costs, one.usual)
            self._last = one
        self._rounds = []
