"""How much may be under way."""

from __future__ import annotations

from tandem.front.checks import RefusedError


class NoRoomError(RefusedError):
    """There is too much under way."""


class Room:
    """For requests of a protocol, and for bodies on their way in."""

    def __init__(self, most_calls: int, most_bytes: int = 0) -> None:
        """most_bytes: of all bodies together."""
        self._most_calls, self.most_bytes = most_calls, most_bytes
        self.calls = self.bytes = 0

    def take_call(self) -> None:
        """Raises NoRoomError. What is taken is given back by its taker."""
        if self.calls >= self._most_calls:
            raise NoRoomError(f"{self.calls} requests are under way: try again later.")
        self.calls += 1


class Share:
    """What one of them has of the bytes."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._bytes = 0

    def take(self, count: int) -> None:
        """Raises NoRoomError."""
        if self._room.bytes + count > self._room.most_bytes:
            raise NoRoomError("Too many bodies are on their way: try again later.")
        self._room.bytes += count
        self._bytes += count

    def give_back(self) -> None:
        """All of it."""
        self._room.bytes -= self._bytes
        self._bytes = 0
