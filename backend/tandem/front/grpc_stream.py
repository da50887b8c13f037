"""A stream of requests to Triton's gRPC, and their answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from secrets import token_hex
from typing import Final, NamedTuple

import grpc
from tritonclient.grpc import service_pb2

from tandem.front import CANCEL, CANCEL_ID
from tandem.front.checks import RefusedError, check_message

FINAL: Final = b"\x15triton_final_response\x12\x02\x08\x01"
NOT_TAKEN: Final = b"\x12\x00"
"""In a request's last response, and at the end of one that no model was asked for; in no others,
unless their text happens to have it."""
MOST_NAMES: Final = 256
LEAVE_S: Final = 1.0
"""For a stream to end behind its client."""


Open = Callable[[], grpc.aio.StreamStreamCall]


class Name(NamedTuple):
    """Of a request, by which it can be taken back."""

    model: str
    version: str
    name: str


class GrpcStream:
    """A client's stream and its counterpart before Triton.

    Where a stream is cancelled just behind an answer, Triton 2.51 keeps the request for ever, and
    with it the model, which is then never unloaded. So each request gets a name, those that have
    lost their client are taken back by it, and the stream ends as one that was answered. (It is
    cancelled after a second, for models that cannot take back.)
    """

    def __init__(self, open_: Open, client: grpc.aio.ServicerContext) -> None:
        """open_: a stream to Triton."""
        self._open = open_
        self._triton = open_()
        self._client = client
        self._to_triton, self._to_client = asyncio.Lock(), asyncio.Lock()
        """gRPC takes one message at a time."""
        self._names: deque[Name] = deque(maxlen=MOST_NAMES)
        """Of what may not be answered yet."""
        self._under_way = 0
        self._left = False

    async def run(self, requests: AsyncIterator[bytes], leaving: set[asyncio.Task[None]]) -> None:
        """Until all is answered. Raises AioRpcError where Triton ends the stream otherwise. What is
        left to do where the client has left goes on in a task of `leaving`."""
        # Tasks of their own: what is cancelled as it reads or writes cancels Triton's stream.
        answering = asyncio.create_task(self._answer())
        answering.add_done_callback(_looked_at)
        passing = asyncio.create_task(self._pass_on(requests))
        try:
            await asyncio.shield(answering)
        except asyncio.CancelledError:
            self._left = True
            task = asyncio.create_task(self._leave(answering))
            leaving.add(task)
            task.add_done_callback(leaving.discard)
            raise
        finally:
            passing.cancel()

    async def _pass_on(self, requests: AsyncIterator[bytes]) -> None:
        """The client's requests, until it has no more. What is refused is answered here."""
        async for content in requests:
            try:
                request = check_message(content)
            except RefusedError as error:
                await self._say(_refusal(str(error)))
            else:
                self._under_way += 1
                self._names.append(_named(request))
                await asyncio.shield(self._tell(request.SerializeToString()))
        await asyncio.shield(self._tell(None))

    async def _tell(self, request: bytes | None) -> None:
        """None: there is no request any more."""
        # Triton may have ended, which the answers say.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with self._to_triton:
                if request is None:
                    await self._triton.done_writing()
                else:
                    await self._triton.write(request)

    async def _answer(self) -> None:
        while (answer := await self._triton.read()) is not grpc.aio.EOF:
            if FINAL in answer or answer.endswith(NOT_TAKEN):
                self._under_way -= 1
            if self._under_way <= 0:
                self._names.clear()
            await self._say(answer)

    async def _say(self, answer: bytes) -> None:
        async with self._to_client:
            if not self._left:
                try:
                    await self._client.write(answer)
                except (grpc.aio.InternalError, asyncio.InvalidStateError):
                    self._left = True

    async def _leave(self, answering: asyncio.Task[None]) -> None:
        with suppress(TimeoutError, grpc.aio.AioRpcError):
            async with asyncio.timeout(LEAVE_S):
                await self._tell(None)
                await self._take_back()
                await asyncio.wait([answering])
        self._triton.cancel()

    async def _take_back(self) -> None:
        """By a stream of its own: the client may have ended this one long ago."""
        if not self._names:
            return
        telling = self._open()
        for one in self._names.copy():
            await telling.write(_taking_back(one))
        await telling.done_writing()
        while await telling.read() is not grpc.aio.EOF:
            pass


def _looked_at(task: asyncio.Task[None]) -> None:
    """How it ended is told to the client, where it is there, and else to nobody."""
    if not task.cancelled():
        task.exception()


def _named(request: service_pb2.ModelInferRequest) -> Name:
    """Its name, which it may have by itself."""
    parameter = request.parameters[CANCEL_ID]
    if parameter.WhichOneof("parameter_choice") is None:
        parameter.string_param = token_hex(16)
    return Name(request.model_name, request.model_version, parameter.string_param)


def _taking_back(one: Name) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=one.model, model_version=one.version)
    request.parameters[CANCEL].string_param = one.name
    content: bytes = request.SerializeToString()
    return content


def _refusal(sentence: str) -> bytes:
    """As Triton has them on a stream."""
    answer: bytes = service_pb2.ModelStreamInferResponse(error_message=sentence).SerializeToString()
    return answer
