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

from tandem.front import CANCEL, CANCEL_ID
from tandem.front.checks import RefusedError, check_tensors, read_json

_MODEL: Final = r"/v2/models/[\w-][\w.-]*(/versions/\d+)?"
_ASKING: Final = re.compile(rf"/v2(/health/(live|ready))?|{_MODEL}(/(ready|config|stats))?")
_GENERATING: Final = re.compile(rf"{_MODEL}/generate(_stream)?")
_INFERRING: Final = re.compile(rf"{_MODEL}/infer")
_METRICS: Final = "/metrics"
JSON_BYTES: Final = "Inference-Header-Content-Length"
"""Of a body, those before its tensors' binary data. (Triton's protocol, binary data extension.)"""
_PASSED_ON: Final = ("Content-Type", JSON_BYTES)
_TAKE_BACK: Final = ClientTimeout(total=5.0)
"""Nobody waits for it."""


class HttpFront:
    """Passes requests on that ask for models and their answers, and answers as they come.

    Triton's own HTTP does not notice that a client has left before it has something to write to it
    (issue 7077 of its server). So each request to generate gets a name, and one that has lost its
    client is taken back by it.
    """

    def __init__(self, triton: str, session: ClientSession, most_calls: int) -> None:
        """triton: host:port. most_calls: at a time, of which one more is refused."""
        self._triton = f"http://{triton}"
        self._session = session
        self._most_calls = most_calls
        self._calls = 0
        self._telling: set[asyncio.Task[None]] = set()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request; cancelled where its client has left."""
        if self._calls >= self._most_calls:
            return refusal(503, f"{self._calls} requests are under way: try again later.")
        self._calls += 1
        try:
            return await self._answer(request)
        except RefusedError as error:
            return refusal(400, str(error))
        except web.HTTPRequestEntityTooLarge:
            return refusal(413, "The body is larger than this server takes: send less.")
        finally:
            self._calls -= 1

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path, name = request.raw_path.partition("?")[0], ""
        if request.method == "GET" and _ASKING.fullmatch(path):
            return await self._pass_on(request, path, None)
        if request.method != "POST":
            return not_let_in()
        if _GENERATING.fullmatch(path):
            body, name = named(await request.read())
        elif _INFERRING.fullmatch(path):
            body = await request.read()
            check_tensors(read_json(body[: _json_bytes(request, len(body))]), len(body))
        else:
            return not_let_in()
        try:
            return await self._pass_on(request, path, body)
        except (asyncio.CancelledError, ConnectionError):  # the client has left
            if name:
                self._take_back(path, name)
            raise

    async def _pass_on(
        self, request: web.BaseRequest, path: str, body: bytes | None
    ) -> web.StreamResponse:
        """Only headers that Triton needs go with it, and the answer's that its reader needs."""
        url, headers = URL(self._triton + path, encoded=True), kept(request.headers)
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
        url = URL(self._triton + path.removesuffix("_stream"), encoded=True)
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
            answer = await self._session.get(self._url)
        except ClientError:
            return no_answer()
        async with answer:
            return await _relay(answer, request)


async def _relay(answer: ClientResponse, request: web.BaseRequest) -> web.StreamResponse:
    """What comes goes on as it comes. Where Triton ends within it the client's connection does."""
    response = web.StreamResponse(status=answer.status, headers=kept(answer.headers))
    response.content_length = answer.content_length
    await response.prepare(request)
    try:
        async for piece in answer.content.iter_any():
            await response.write(piece)
        await response.write_eof()
    except ClientPayloadError:
        if request.transport is not None:
            request.transport.abort()
    return response


def named(body: bytes) -> tuple[bytes, str]:
    """A request to generate with a name by which it can be taken back, and the name; "" where it
    has none. Raises RefusedError."""
    said = read_json(body)
    if not isinstance(said, dict) or CANCEL in said:
        return body, ""
    if CANCEL_ID in said:
        return body, str(said[CANCEL_ID])
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


def refusal(status: int, sentence: str) -> web.Response:
    """As Triton has them."""
    return web.json_response({"error": sentence}, status=status)


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
    if not said.isdecimal() or int(said) > size:
        raise RefusedError(f"{JSON_BYTES} is {said[:32]!r}: send the bytes of the body's JSON.")
    return int(said)
