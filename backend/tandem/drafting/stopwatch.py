"""When rounds began and ended. What follows for their costs is worked out now and then: behind a
pass, which has driven all else from the processor's caches, each line is slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tandem.drafting.costs import RoundCosts


class _Round(NamedTuple):
    first: str
    """Of its requests. Where it goes on, nothing was waited for in between."""
    by_model: bool
    """Whether the model drafted."""
    rows: int
    """Of its pass."""
    begun: float
    proposed: float
    """When the pass began."""


class _Drafted(NamedTuple):
    """As `RoundCosts.observe_draft` takes it."""

    requests: int
    levels: int
    seconds: float
    read: int


class Stopwatch:
    """Times rounds, and tells their costs."""

    def __init__(self, costs: RoundCosts, clock: Callable[[], float]) -> None:
        self.costs = costs
        self.clock = clock
        self._rounds: list[_Round] = []
        self._ends: list[float] = []
        self._drafts: list[_Drafted] = []
        self._last: tuple[_Round, float] | None = None
        """The last round learnt from, and its end."""

    def drafted(self, requests: int, levels: int, seconds: float, read: int) -> None:
        """A model's draft took so long."""
        self._drafts.append(_Drafted(requests, levels, seconds, read))

    def proposed(self, first: str, by_model: bool, rows: int, begun: float) -> None:
        """A round's pass begins."""
        if len(self._ends) < len(self._rounds):  # the last one was given up
            self._rounds.pop()
        self._rounds.append(_Round(first, by_model, rows, begun, self.clock()))

    def verified(self) -> None:
        """It has ended; the first call for a round counts."""
        if len(self._ends) < len(self._rounds):
            self._ends.append(self.clock())

    def learn(self) -> None:
        """From what was timed since the last call."""
        for one, end in zip(self._rounds, self._ends, strict=False):
            if self._last is not None and self._last[0].first == one.first:
                before, ended = self._last
                self.costs.observe_between(one.begun - ended, before.by_model)
            self.costs.observe_pass(one.rows, end - one.proposed)
            self._last = one, end
        for drafted in self._drafts:
            self.costs.observe_draft(*drafted)
        self._rounds, self._ends, self._drafts = [], [], []
