"""Where clients come."""

from __future__ import annotations

from typing import NamedTuple

from tandem.front import MOST_BYTES, MOST_CALLS
from tandem.serving.ports import FREE, Ports


class Door(NamedTuple):
    """Addresses, and how much is let in."""

    host: str = "127.0.0.1"
    ports: Ports = FREE
    most_calls: int = MOST_CALLS
    """Requests at a time, of each protocol, of which one more is refused."""
    most_bytes: int = MOST_BYTES
    """Of a request, unpacked where it is compressed."""
