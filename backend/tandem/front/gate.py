"""Which requests are let in."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, generate_latest

from tandem.errors import NO_ROOM
from tandem.front.room import NoRoomError, Room
from tandem.metrics import FRONT_REFUSED

FULL_S: Final = 0.1
"""For which a model that has said so is full, where no request of it has ended since: it may have
clients that come to it straight."""
NOT_LET_IN: Final = "not_let_in"


class Model(NamedTuple):
    """As a request names it."""

    name: str
    version: str


class FullError(NoRoomError):
    """A request that its model would refuse."""

    reason: ClassVar[str] = "queue_full"


class Full:
    """Models that have just said that they have no room. Until a request of them has ended, others
    are told the same here, which costs neither Triton nor them anything: under an overload what is
    refused would else take most of what is there to answer with."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._said: dict[Model, tuple[str, float]] = {}

    def check(self, model: Model) -> None:
        """Raises FullError."""
        sentence, until = self._said.get(model, ("", 0.0))
        if self._now() < until:
            raise FullError(sentence)

    def ended(self, model: Model, error: str) -> None:
        """A request of it, with this error."""
        if (no_room := NO_ROOM.fullmatch(error)) and no_room["full"]:
            self._said[model] = error, self._now() + FULL_S
        else:
            self._said.pop(model, None)


class Refusals:
    """Of the front, counted."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counter = Counter(
            FRONT_REFUSED.name, FRONT_REFUSED.help, [FRONT_REFUSED.label], registry=self._registry
        )
        for reason in FRONT_REFUSED.values:  # a rate has to begin at something
            self._counter.labels(reason)

    def count(self, reason: str) -> None:
        """One more."""
        self._counter.labels(reason).inc()

    def shown(self) -> bytes:
        """As /metrics has them."""
        return generate_latest(self._registry)


class Gate:
    """Of a protocol."""

    def __init__(self, calls: Room, full: Full, refusals: Refusals) -> None:
        self._calls = calls
        self._full = full
        self._refusals = refusals

    def enter(self, model: Model, takes_back: bool) -> None:
        """Raises NoRoomError. takes_back: another request, which makes room."""
        if not takes_back:
            self._full.check(model)
        self._calls.take(urgent=takes_back)

    def leave(self, model: Model | None, error: str = "", count: int = 1) -> None:
        """Requests that have entered, and ended with this error. None: of models that differ."""
        self._calls.give_back(count)
        if model is not None and count:
            self._full.ended(model, error)

    def refused(self, reason: str) -> None:
        """A request."""
        self._refusals.count(reason)
