"""How much may be under way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final, Protocol

from tandem.front.checks import RefusedError

HELD_BYTES: Final = 256 << 20
"""Of all requests together that are on their way."""
COPIES: Final = 2
"""Of a request: as it came, and as it is passed on."""
QUICK_S: Final = 1.0
"""In which a request may arrive, however many others do."""


class NoRoomError(RefusedError):
    """There is too much under way."""

    reason: ClassVar[str] = "no_room"


class Room:
    """For so many of something, which whoever takes them gives back."""

    def __init__(self, most: int, what: str, spare: int = 0) -> None:
        """what: is under way, as a sentence has it. spare: so much more for what is urgent."""
        self._most = most
        self._what = what
        self._spare = spare
        self.taken = 0

    def take(self, count: int = 1, urgent: bool = False) -> None:
        """Raises NoRoomError."""
        if self.taken + count > self._most + self._spare * urgent:
            raise NoRoomError(f"{self.taken} {self._what} are under way: try again later.")
        self.taken += count

    def give_back(self, count: int = 1) -> None:
        """What was taken, or some of it."""
        self.taken -= count

    @contextmanager
    def held(self, count: int) -> Iterator[None]:
        """Taken while this is open. Raises NoRoomError."""
        self.take(count)
        try:
            yield
        finally:
            self.give_back(count)


class Arrival(Protocol):
    """A request on its way, which has room for what has come of it."""

    since: float
    """When it began, by the steady clock."""

    def give_way(self) -> None:
        """Gives its room back, and is refused."""
        ...


class RoomOfBytes(Room):
    """For bytes of requests. Where there is none left, what has been on its way for longest gives
    way, unless that is no long time: so nobody keeps others out by sending slowly."""

    def __init__(self, most: int) -> None:
        super().__init__(most, "bytes of requests")
        self.arriving: dict[Arrival, None] = {}
        """In the order in which they began."""

    def take(self, count: int = 1, urgent: bool = False, by: Arrival | None = None) -> None:
        """by: what takes it, if it is still on its way. Raises NoRoomError."""
        while self.taken + count > self._most:
            slowest = self._slowest()
            if slowest is None or slowest is by:
                break
            slowest.give_way()
        super().take(count, urgent)

    def _slowest(self) -> Arrival | None:
        first = next(iter(self.arriving), None)
        return first if first and time.monotonic() > first.since + QUICK_S else None


def for_calls(most: int) -> Room:
    """Requests, and as many that take another one back."""
    return Room(most, "requests", spare=most)


def for_bodies(most_bytes: int, most: int = HELD_BYTES) -> RoomOfBytes:
    """Bytes of requests that are held here, of one at least. most_bytes: of one."""
    return RoomOfBytes(max(most, COPIES * most_bytes))


def for_streams(most: int) -> Room:
    """Streams of requests, with or without any under way."""
    return Room(most, "streams")
