"""The bodies of HTTP requests."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from aiohttp import web

from tandem.front.checks import RefusedError
from tandem.front.room import COPIES, NoRoomError, RoomOfBytes
from tandem.validation import short

READ_S, PAUSE_S = 60.0, 10.0
"""For a body to arrive, and to pause meanwhile: what has come takes room from others."""
_ANY_HEADER: Final = 32 + zlib.MAX_WBITS
"""Of gzip or of zlib."""
_PACKED: Final = ("gzip", "deflate")


class TooLargeError(RefusedError):
    """A body of too many bytes."""


class Body:
    """One of a request, and the room that it has until it is passed on."""

    def __init__(self, room: RoomOfBytes) -> None:
        self.content = b""
        """Unpacked."""
        self.since = time.monotonic()
        self.gave_way = False
        self._room, self.taken = room, 0
        self._limit: asyncio.Timeout

    def take(self, count: int, arriving: bool = False) -> None:
        """Raises NoRoomError."""
        self._room.take(count, by=self if arriving else None)
        self.taken += count

    def give_back(self) -> None:
        """All that it has."""
        self._room.give_back(self.taken)
        self.taken = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        """What is passed on. Its answer, which may take long, needs no room for it."""
        yield self.content
        self.content = b""
        self.give_back()

    @contextmanager
    def arriving(self, limit: asyncio.Timeout) -> Iterator[None]:
        """While this is open it may have to give way, by the limit of its time."""
        self._limit = limit
        self._room.arriving[self] = None
        try:
            yield
        finally:
            self._room.arriving.pop(self, None)

    def give_way(self) -> None:
        """To others."""
        self.gave_way = True
        self.give_back()
        del self._room.arriving[self]
        self._limit.reschedule(asyncio.get_running_loop().time())


@asynccontextmanager
async def body_of(request: web.BaseRequest, most: int, room: RoomOfBytes) -> AsyncIterator[Body]:
    """It, which has its room while this is open, or until it is passed on. most: bytes, packed or
    not. Raises RefusedError: it is larger, or late, or packed in another way."""
    its = Body(room)
    try:
        packed = await _read(request, most, its)
        its.content = _unpacked(packed, request.headers.get("Content-Encoding", ""), most)
        its.take(COPIES * len(its.content) - its.taken)
        del packed
        yield its
    finally:
        its.give_back()


async def _read(request: web.BaseRequest, most: int, its: Body) -> bytes:
    pieces = bytearray()
    try:
        async with asyncio.timeout(READ_S) as limit:
            with its.arriving(limit):
                while piece := await _next(request):
                    if len(pieces) + len(piece) > most:
                        raise TooLargeError(f"The body is of more than {most} bytes: send less.")
                    its.take(len(piece), arriving=True)
                    pieces += piece
    except TimeoutError:
        if its.gave_way:
            raise NoRoomError(
                "Other requests had no room while this one was on its way for longest: try again "
                "later."
            ) from None
        raise RefusedError(
            f"The body has not arrived in {READ_S:g} s, or paused for {PAUSE_S:g}: send it again."
        ) from None
    return bytes(pieces)


async def _next(request: web.BaseRequest) -> bytes:
    """Of a body; empty: there is no more."""
    async with asyncio.timeout(PAUSE_S):
        return await request.content.readany()


def _unpacked(packed: bytes, how: str, most: int) -> bytes:
    if how in ("", "identity"):
        return packed
    if how not in _PACKED:
        raise RefusedError(f"The body is packed by {short(how)}: send it plain, or by gzip.")
    unpacking = zlib.decompressobj(_ANY_HEADER)
    try:
        body = unpacking.decompress(packed, most + 1)
    except zlib.error:
        raise RefusedError(f"The body is not packed by {how}: send it as it says.") from None
    if len(body) > most:
        raise TooLargeError(f"The body is of more than {most} bytes: send less.")
    if not unpacking.eof or unpacking.unused_data:
        raise RefusedError(f"The body is not one whole packed by {how}: send it as one.")
    return body
