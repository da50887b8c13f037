"""How much may be under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

from tandem.front.checks import RefusedError

HELD_BYTES: Final = 256 << 20
"""Of all requests together that are on their way."""
COPIES: Final = 2
"""Of a request: as it came, and as it is passed on."""


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


def for_calls(most: int) -> Room:
    """Requests, and as many that take another one back."""
    return Room(most, "requests", spare=most)


def for_bodies(most_bytes: int, most: int = HELD_BYTES) -> Room:
    """Bytes of requests that are held here, of one at least. most_bytes: of one."""
    return Room(max(most, COPIES * most_bytes), "bytes of requests")


def for_streams(most: int) -> Room:
    """Streams of requests, with or without any under way."""
    return Room(most, "streams")
