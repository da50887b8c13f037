"""Before Triton's HTTP."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any, Final, NamedTuple

from aiohttp import (
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    web,
)
from yarl import URL

from tandem.errors import NO_ROOM
from tandem.front import CANCEL, CANCEL_ID, STALL_S
from tandem.front.bodies import Body, TooLargeError, body_of
from tandem.front.checks import VERSION, RefusedError, check_names, check_tensors, read_json
from tandem.front.gate import NOT_LET_IN, Gate, Model, Refusals
from tandem.front.misread import MISREAD, Members, members_of, sentence
from tandem.front.room import NoRoomError, RoomOfBytes

_MODEL: Final = rf"/v2/models/(?P<model>[\w-][\w.-]*)(/versions/(?P<version>{VERSION}))?"
_ASKING: Final = re.compile(rf"/v2(/health/(live|ready))?|{_MODEL}(/(ready|config|stats))?")
_INFERRING: Final = re.compile(rf"{_MODEL}/(infer|generate|generate_stream)")
_METRICS: Final = "/metrics"
JSON_BYTES: Final = "Inference-Header-Content-Length"
"""Of a body, those before its tensors' binary data. (Triton's protocol, binary data extension.)"""
_PASSED_ON: Final = ("Content-Type", JSON_BYTES)
_AS_IT_IS: Final = {"Accept-Encoding": "identity"}
_OK, _BAD_REQUEST, _UNAVAILABLE = 200, 400, 503
_COUNT: Final = re.compile("[0-9]{1,10}")
_TAKE_BACK: Final = ClientTimeout(total=5.0)
"""Nobody waits for it."""
_SCRAPE: Final = ClientTimeout(total=10.0)


class HttpFront:
    """Passes requests on that ask for models and their answers, and answers as they come.

    Triton's own HTTP does not notice that a client has left before it has something to write to it
    (issue 7077 of its server). So each request to generate gets a name, and one that has lost its
    client is taken back by it.
    """

    def __init__(
        self, triton: str, session: ClientSession, gate: Gate, bodies: RoomOfBytes, most_bytes: int
    ) -> None:
        """triton: host:port. most_bytes: of a body."""
        self._triton = f"http://{triton}"
        self._session = session
        self._gate, self._bodies = gate, bodies
        self._most_bytes = most_bytes
        self._telling: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Behind the last request: what those that were left have to be told is told."""
        await asyncio.gather(*self._telling)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request; cancelled where its client has left."""
        path = request.raw_path.partition("?")[0]
        asks = _ASKING.fullmatch(path)
        infers = _INFERRING.fullmatch(path)
        if not asks and not infers:
            self._gate.refused(NOT_LET_IN)
            return not_let_in()
        if request.method != (method := "GET" if asks else "POST"):
            self._gate.refused(NOT_LET_IN)
            return refusal(405, f"{path} is asked by {method}: send it so.", {"Allow": method})
        if infers is None:
            return await self._pass_on(request, path, None)
        try:
            async with body_of(request, self._most_bytes, self._bodies) as body:
                model = Model(infers["model"], infers["version"] or "")
                return await self._infer(request, path, model, body)
        except RefusedError as error:
            self._gate.refused(error.reason)
            return refusal(_status(error), str(error))
        except web.RequestPayloadError as error:
            self._gate.refused(RefusedError.reason)
            return refusal(400, f"The body cannot be read ({error}): send it again.")

    async def _infer(
        self, request: web.BaseRequest, path: str, model: Model, body: Body
    ) -> web.StreamResponse:
        name, takes_back, members = "", False, members_of({})
        if path.endswith("/infer"):
            content = body.content
            check_tensors(read_json(content[: _json_bytes(request, len(content))]), len(content))
            del content
        else:
            body.content, name, takes_back, members = named(body.content)
        self._gate.enter(model, takes_back)
        said = ""
        try:
            response = await self._pass_on(request, path, body)
            said = _error(response)
        except asyncio.CancelledError:  # the client has left
            if name:
                self._take_back(path, name)
            raise
        finally:
            self._gate.leave(model, said)
        wrong = MISREAD.fullmatch(said)
        return await self._misread(path, wrong, members) if wrong else response

    async def _pass_on(
        self, request: web.BaseRequest, path: str, body: Body | None
    ) -> web.StreamResponse:
        """Only headers that Triton needs go with it, and the answer's that its reader needs."""
        url = URL(self._triton + path, encoded=True)
        headers, data = kept(request.headers) | _AS_IT_IS, None
        if body:
            headers["Content-Length"] = str(len(body.content))
            data = body.pieces()
        try:
            answer = await self._session.request(
                request.method, url, data=data, headers=headers, allow_redirects=False
            )
        except ClientError:
            return no_answer()
        async with answer:
            return await _relay(answer, request)

    async def _misread(
        self, path: str, wrong: re.Match[str], members: Members
    ) -> web.StreamResponse:
        """Triton says 500 of a value that it cannot read, which is a client's mistake."""
        url = URL(self._triton + path.rpartition("/")[0], encoded=True)
        inputs: Sequence[Mapping[str, Any]] = ()
        if members:
            with suppress(ClientError, TimeoutError, ValueError, KeyError):  # it has ended since
                async with self._session.get(url, headers=_AS_IT_IS, timeout=_SCRAPE) as answer:
                    inputs = (await answer.json())["inputs"]
        return refusal(_BAD_REQUEST, sentence(wrong, members, inputs))

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
    """Passes on what a scraper asks, and adds what this has refused."""

    def __init__(self, triton: str, session: ClientSession, refusals: Refusals) -> None:
        """triton: host:port of its metrics."""
        self._url = URL(f"http://{triton}{_METRICS}")
        self._session = session
        self._refusals = refusals

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request."""
        if (request.method, request.raw_path) != ("GET", _METRICS):
            return not_let_in()
        try:
            async with self._session.get(self._url, headers=_AS_IT_IS, timeout=_SCRAPE) as answer:
                shown = await answer.read()
        except (ClientError, TimeoutError):
            return no_answer()
        if answer.status == _OK:
            shown += self._refusals.shown()
        return web.Response(body=shown, status=answer.status, headers=kept(answer.headers))


async def _relay(answer: ClientResponse, request: web.BaseRequest) -> web.StreamResponse:
    """What comes goes on as it comes. Where Triton ends within it the client's connection does.
    Raises CancelledError where the client has left, as one has that reads nothing."""
    if answer.status >= _BAD_REQUEST:
        return await _relay_error(answer)
    response = web.StreamResponse(status=answer.status, headers=kept(answer.headers))
    response.content_length = answer.content_length
    try:
        await response.prepare(request)
        async for piece in answer.content.iter_any():
            async with asyncio.timeout(STALL_S):
                await response.write(piece)
        async with asyncio.timeout(STALL_S):
            await response.write_eof()
    except (ClientPayloadError, ConnectionError, TimeoutError) as error:
        # aiohttp cancels this where it sees the client go, unless that is seen here first.
        if request.transport is not None:
            request.transport.abort()
        raise asyncio.CancelledError from error
    return response


async def _relay_error(answer: ClientResponse) -> web.Response:
    """As a whole. Triton 2.51 says 400 whatever a model has said: that it is full is no mistake of
    the client's."""
    try:
        body = await answer.read()
    except ClientError:
        return no_answer()
    status = _UNAVAILABLE if NO_ROOM.fullmatch(_sentence(body)) else answer.status
    return web.Response(body=body, status=status, headers=kept(answer.headers))


class Named(NamedTuple):
    """A request to generate."""

    body: bytes
    name: str
    """By which it can be taken back; "": it has none."""
    takes_back: bool
    """Another one."""
    members: Members


def named(body: bytes) -> Named:
    """What a body asks for. It gets a name where it has none. Raises RefusedError."""
    said = read_json(body)
    if not isinstance(said, dict):
        raise RefusedError("The body is no object: send one with 'text_input'.")
    name = check_names(said)
    if name or CANCEL in said:
        return Named(body, name, CANCEL in said, members_of(said))
    name = token_hex(16)
    members = body.lstrip()[1:]
    separator = b", " if said else b""
    body = b'{"%b": "%b"%b%b' % (CANCEL_ID.encode(), name.encode(), separator, members)
    return Named(body, name, False, members_of(said))


def kept(headers: Mapping[str, str]) -> dict[str, str]:
    """Those that say how the body is to be read."""
    return {name: headers[name] for name in _PASSED_ON if name in headers}


def _status(error: RefusedError) -> int:
    if isinstance(error, NoRoomError):
        return _UNAVAILABLE
    return 413 if isinstance(error, TooLargeError) else 400


def _error(response: web.StreamResponse) -> str:
    """What Triton says that cannot answer; "" where it answers."""
    body = response.body if isinstance(response, web.Response) else None
    return _sentence(body) if isinstance(body, bytes) else ""


def _sentence(body: bytes) -> str:
    """Of an error, which is an event where a stream was asked for."""
    try:
        return str(json.loads(body.removeprefix(b"data: "))["error"])
    except (ValueError, KeyError, TypeError):
        return ""


def refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """As Triton has them."""
    return web.json_response({"error": sentence}, status=status, headers=headers)


def no_answer() -> web.Response:
    """Where Triton is not there, or not yet."""
    return refusal(_UNAVAILABLE, "Triton has ended, or is not there yet: try again later.")


def not_let_in() -> web.Response:
    """To what is neither a model nor an answer of one."""
    return refusal(
        403, "This server lets in what asks for models and their answers: ask its operator."
    )


def _json_bytes(request: web.BaseRequest, size: int) -> int:
    said = request.headers.get(JSON_BYTES, str(size))
    if not _COUNT.fullmatch(said) or int(said) > size:
        raise RefusedError(f"{JSON_BYTES} is {said[:32]!r}: send the bytes of the body's JSON.")
    if size and int(said) == 0:
        raise RefusedError(f"{JSON_BYTES} is 0: say in JSON what the body has, as for any model.")
    return int(said)
