"""How much may be under way."""

from __future__ import annotations

from tandem.front.checks import RefusedError


class NoRoomError(RefusedError):
    """There is too much under way."""


class Room:
    """For requests of a protocol, and for bodies on their way in."""

    def __init__(self, most_calls: int, most_bytes: int = 0) -> None:
        """most_bytes: of all bodies together."""
        self._most_calls, self._most_bytes = most_calls, most_bytes
        self.calls = self.bytes = 0

    def take_call(self) -> None:
        """Raises NoRoomError. What is taken is given back by its taker."""
        if self.calls >= self._most_calls:
            raise NoRoomError(f"{self.calls} requests are under way: try again later.")
        self.calls += 1

    def take_bytes(self, count: int) -> None:
        """Raises NoRoomError."""
        if self.bytes + count > self._most_bytes:
            raise NoRoomError("Too many bodies are on their way: try again later.")
        self.bytes += count
