"""How much may be under way."""

from __future__ import annotations

from typing import ClassVar

from tandem.front.checks import RefusedError


class NoRoomError(RefusedError):
    """There is too much under way."""

    reason: ClassVar[str] = "no_room"


class Room:
    """For so many of something, which whoever takes them gives back."""

    def __init__(self, most: int, what: str) -> None:
        """what: is under way, as a sentence has it."""
        self._most = most
        self._what = what
        self.taken = 0

    def take(self, count: int = 1) -> None:
        """Raises NoRoomError."""
        if self.taken + count > self._most:
            raise NoRoomError(f"{self.taken} {self._what} are under way: try again later.")
        self.taken += count

    def give_back(self, count: int = 1) -> None:
        """What was taken, or some of it."""
        self.taken -= count


def for_calls(most: int) -> Room:
    """Requests."""
    return Room(most, "requests")


def for_bodies(most: int) -> Room:
    """Bytes of bodies."""
    return Room(most, "bytes of bodies")
