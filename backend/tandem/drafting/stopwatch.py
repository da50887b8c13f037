"""When rounds began and ended. What follows for their costs is worked out now and then: behind a
pass, which has driven all else from the processor's caches, each line is slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tandem.drafting.costs import RoundCosts


class Begun(NamedTuple):
    """A round under way."""

    requests: int
    first: str
    """Of them. Where it goes on, nothing was waited for in between."""
    by_model: bool
    """Whether the model drafted."""
    rows: int
    """To be verified."""
    at: float


class _Round(NamedTuple):
    """One that has ended."""

    begun: Begun
    alone: bool
    """Whether its pass did nothing but verify: one that read prompts says nothing of others."""
    seconds: float
    """Of its pass."""
    ended: float


class _Drafted(NamedTuple):
    """As `RoundCosts.observe_draft` takes it."""

    requests: int
    levels: float
    seconds: float
    read: int


class Stopwatch:
    """Times rounds, and tells their costs."""

    def __init__(self, costs: RoundCosts, clock: Callable[[], float]) -> None:
        self.costs = costs
        self.clock = clock
        self._rounds: list[_Round] = []
        self._drafts: list[_Drafted] = []
        self._last: _Round | None = None
        """The last round learnt from."""

    def drafted(self, requests: int, levels: float, seconds: float, read: int) -> None:
        """A model's draft took so long."""
        self._drafts.append(_Drafted(requests, levels, seconds, read))

    def ended(self, begun: Begun, rows: int, seconds: float) -> None:
        """A round has ended, whose pass over so many rows took so long."""
        self._rounds.append(_Round(begun, begun.rows == rows, seconds, self.clock()))

    @staticmethod
    def _carried_on(last: _Round, begun: Begun) -> bool:
        """Whether nobody has come or gone since the last round began."""
        return last.alone and last.begun.requests == begun.requests

    def learn(self) -> None:
        """From what was timed since the last call."""
        for one in self._rounds:
            begun, last = one.begun, self._last
            if last is not None and last.begun.first == begun.first:
                apart, by_model = begun.at - last.ended, last.begun.by_model
                self.costs.between.observe(begun.requests, apart, by_model)
            rests = last is not None and last.begun.by_model and not begun.by_model
            # a draft has left other things in the caches, and behind a request that has come or
            # gone the processor is at work for it too, which it would be with any other draft
            usual = one.alone and not rests and (last is None or self._carried_on(last, begun))
            self.costs.observe_pass(begun.requests, begun.rows if usual else None, one.seconds)
            self._last = one
        for drafted in self._drafts:
            self.costs.observe_draft(*drafted)
        self._rounds, self._drafts = [], []
