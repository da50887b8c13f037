"""Before Triton's HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from secrets import token_hex
from typing import Final

from aiohttp import (
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    web,
)
from yarl import URL

from tandem.front import CANCEL, CANCEL_ID, STALL_S
from tandem.front.bodies import TooLargeError, body_of
from tandem.front.checks import RefusedError, check_names, check_tensors, read_json
from tandem.front.room import NoRoomError, Room

_MODEL: Final = r"/v2/models/[\w-][\w.-]*(/versions/\d+)?"
_ASKING: Final = re.compile(rf"/v2(/health/(live|ready))?|{_MODEL}(/(ready|config|stats))?")
_INFERRING: Final = re.compile(rf"{_MODEL}/(infer|generate|generate_stream)")
_METRICS: Final = "/metrics"
JSON_BYTES: Final = "Inference-Header-Content-Length"
"""Of a body, those before its tensors' binary data. (Triton's protocol, binary data extension.)"""
_PASSED_ON: Final = ("Content-Type", JSON_BYTES)
_AS_IT_IS: Final = {"Accept-Encoding": "identity"}
_STATUS: Final = {NoRoomError: 503, TooLargeError: 413}
_COUNT: Final = re.compile("[0-9]{1,10}")
_TAKE_BACK: Final = ClientTimeout(total=5.0)
"""Nobody waits for it."""


class HttpFront:
    """Passes requests on that ask for models and their answers, and answers as they come.

    Triton's own HTTP does not notice that a client has left before it has something to write to it
    (issue 7077 of its server). So each request to generate gets a name, and one that has lost its
    client is taken back by it.
    """

    def __init__(
        self, triton: str, session: ClientSession, calls: Room, bodies: Room, most_bytes: int
    ) -> None:
        """triton: host:port. most_bytes: of a body."""
        self._triton = f"http://{triton}"
        self._session = session
        self._calls, self._bodies = calls, bodies
        self._most_bytes = most_bytes
        self._telling: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Behind the last request: what those that were left have to be told is told."""
        await asyncio.gather(*self._telling)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request; cancelled where its client has left."""
        path = request.raw_path.partition("?")[0]
        asks = _ASKING.fullmatch(path)
        if not asks and not _INFERRING.fullmatch(path):
            return not_let_in()
        if request.method != (method := "GET" if asks else "POST"):
            return refusal(405, f"{path} is asked by {method}: send it so.", {"Allow": method})
        if asks:
            return await self._pass_on(request, path, None)
        try:
            async with body_of(request, self._most_bytes, self._bodies) as body:
                return await self._infer(request, path, body)
        except RefusedError as error:
            return refusal(_STATUS.get(type(error), 400), str(error))
        except web.RequestPayloadError as error:
            return refusal(400, f"The body cannot be read ({error}): send it again.")

    async def _infer(self, request: web.BaseRequest, path: str, body: bytes) -> web.StreamResponse:
        name = ""
        if path.endswith("/infer"):
            check_tensors(read_json(body[: _json_bytes(request, len(body))]), len(body))
        else:
            body, name = named(body)
        self._calls.take()
        try:
            return await self._pass_on(request, path, body)
        except (asyncio.CancelledError, ConnectionError):  # the client has left
            if name:
                self._take_back(path, name)
            raise
        finally:
            self._calls.give_back()

    async def _pass_on(
        self, request: web.BaseRequest, path: str, body: bytes | None
    ) -> web.StreamResponse:
        """Only headers that Triton needs go with it, and the answer's that its reader needs."""
        url = URL(self._triton + path, encoded=True)
        headers = kept(request.headers) | _AS_IT_IS
        try:
            answer = await self._session.request(
                request.method, url, data=body, headers=headers, allow_redirects=False
            )
        except ClientError:
            return no_answer()
        async with answer:
            return await _relay(answer, request)

    def _take_back(self, path: str, name: str) -> None:
        task = asyncio.create_task(self._tell(path, name))
        self._telling.add(task)  # asyncio itself keeps none
        task.add_done_callback(self._telling.discard)

    async def _tell(self, path: str, name: str) -> None:
        url = URL(self._triton + path, encoded=True)
        try:
            async with self._session.post(url, json={CANCEL: name}, timeout=_TAKE_BACK):
                pass
        except (ClientError, TimeoutError):  # Triton has ended, and the request with it
            pass


class MetricsFront:
    """Passes on what a scraper asks."""

    def __init__(self, triton: str, session: ClientSession) -> None:
        """triton: host:port of its metrics."""
        self._url = URL(f"http://{triton}{_METRICS}")
        self._session = session

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request."""
        if (request.method, request.raw_path) != ("GET", _METRICS):
            return not_let_in()
        try:
            answer = await self._session.get(self._url, headers=_AS_IT_IS)
        except ClientError:
            return no_answer()
        async with answer:
            return await _relay(answer, request)


async def _relay(answer: ClientResponse, request: web.BaseRequest) -> web.StreamResponse:
    """What comes goes on as it comes. Where Triton ends within it the client's connection does, and
    a client that reads nothing has left."""
    response = web.StreamResponse(status=answer.status, headers=kept(answer.headers))
    response.content_length = answer.content_length
    await response.prepare(request)
    try:
        async for piece in answer.content.iter_any():
            async with asyncio.timeout(STALL_S):
                await response.write(piece)
        async with asyncio.timeout(STALL_S):
            await response.write_eof()
    except (ClientPayloadError, TimeoutError) as error:
        if request.transport is not None:
            request.transport.abort()
        raise asyncio.CancelledError from error
    return response


def named(body: bytes) -> tuple[bytes, str]:
    """A request to generate with a name by which it can be taken back, and the name; "" where it
    has none. Raises RefusedError."""
    said = read_json(body)
    if not isinstance(said, dict):
        raise RefusedError("The body is no object: send one with 'text_input'.")
    name = check_names(said)
    if name or CANCEL in said:
        return body, name
    name = token_hex(16)
    members = body.lstrip()[1:]
    return b'{"%b": "%b"%b%b' % (
        CANCEL_ID.encode(),
        name.encode(),
        b", " if said else b"",
        members,
    ), name


def kept(headers: Mapping[str, str]) -> dict[str, str]:
    """Those that say how the body is to be read."""
    return {name: headers[name] for name in _PASSED_ON if name in headers}


def refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """As Triton has them."""
    return web.json_response({"error": sentence}, status=status, headers=headers)


def no_answer() -> web.Response:
    """Where Triton is not there, or not yet."""
    return refusal(503, "Triton has ended, or is not there yet: try again later.")


def not_let_in() -> web.Response:
    """To what is neither a model nor an answer of one."""
    return refusal(
        403, "This server lets in what asks for models and their answers: ask its operator."
    )


def _json_bytes(request: web.BaseRequest, size: int) -> int:
    said = request.headers.get(JSON_BYTES, str(size))
    if not _COUNT.fullmatch(said) or int(said) > size:
        raise RefusedError(f"{JSON_BYTES} is {said[:32]!r}: send the bytes of the body's JSON.")
    return int(said)
