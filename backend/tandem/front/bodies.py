"""The bodies of HTTP requests."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from tandem.front.checks import RefusedError
from tandem.front.room import COPIES, Room
from tandem.validation import short

READ_S, PAUSE_S = 60.0, 10.0
"""For a body to arrive, and to pause meanwhile: what has come takes room from others."""
_ANY_HEADER: Final = 32 + zlib.MAX_WBITS
"""Of gzip or of zlib."""
_PACKED: Final = ("gzip", "deflate")


class TooLargeError(RefusedError):
    """A body of too many bytes."""


@asynccontextmanager
async def body_of(request: web.BaseRequest, most: int, room: Room) -> AsyncIterator[bytes]:
    """It, unpacked, which has its room while this is open. most: bytes, packed or not. Raises
    RefusedError: it is larger, or late, or packed in another way."""
    taken = 0

    def take(count: int) -> None:
        nonlocal taken
        room.take(count)
        taken += count

    try:
        packed = await _read(request, most, take)
        body = _unpacked(packed, request.headers.get("Content-Encoding", ""), most)
        take(COPIES * len(body) - len(packed))
        del packed
        yield body
    finally:
        room.give_back(taken)


async def _read(request: web.BaseRequest, most: int, take: Callable[[int], None]) -> bytes:
    pieces = bytearray()
    try:
        async with asyncio.timeout(READ_S):
            while piece := await _next(request):
                if len(pieces) + len(piece) > most:
                    raise TooLargeError(f"The body is of more than {most} bytes: send less.")
                take(len(piece))
                pieces += piece
    except TimeoutError:
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
