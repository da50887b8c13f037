"""A stream of requests to Triton's gRPC, and their answers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from secrets import token_hex
from typing import Final, NamedTuple

import grpc
from tritonclient.grpc import service_pb2

from tandem.errors import TandemError
from tandem.front import CANCEL, CANCEL_ID, GIVEN_ID, STALL_S
from tandem.front.checks import RefusedError, check_message, check_names, read_message, takes_back
from tandem.front.gate import Gate, Model
from tandem.front.room import COPIES, Room

logger = logging.getLogger(__name__)

FINAL, EMPTY_FINAL = "triton_final_response", "triton_enable_empty_final_response"
"""Parameters: of a request's last response; of a request, whose last response comes also where it
says nothing."""
MOST_UNDER_WAY, MOST_NAMES = 64, 256
"""Requests of a stream, of which the next one waits, and those that may be taken back. (Where a
client names many requests alike, it is not known which of them are answered.)"""
LEAVE_S: Final = 1.0
"""For a stream to end behind its client."""
_ENDED: Final = (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError)
"""What a call says that is over."""


Open = Callable[[], grpc.aio.StreamStreamCall]


class BrokenOffError(TandemError):
    """A stream that the front has ended."""


class Sent(NamedTuple):
    """A request under way."""

    model: Model
    name: str
    """By which it can be taken back."""
    request_id: str
    """By which its answers are known."""


class GrpcStream:
    """A client's stream and its counterpart before Triton.

    Where a stream is cancelled just behind an answer, Triton 2.51 keeps the request for ever, and
    with it the model, which is then never unloaded. So each request gets a name, those that have
    lost their client are taken back by it, and the stream ends as one that was answered. (It is
    cancelled after a second, for models that cannot take back.)
    """

    def __init__(
        self, open_: Open, client: grpc.aio.ServicerContext, gate: Gate, bodies: Room
    ) -> None:
        """open_: a stream to Triton."""
        self._open = open_
        self._client = client
        self._gate, self._bodies = gate, bodies
        self._to_triton, self._to_client = asyncio.Lock(), asyncio.Lock()
        """gRPC takes one message at a time."""
        self._sent: deque[Sent] = deque(maxlen=MOST_NAMES)
        self._under_way = 0
        self._has_place = asyncio.Event()
        self._asked_for_empty = False
        self._triton: grpc.aio.StreamStreamCall | None = None
        self._opened, self._over = asyncio.Event(), asyncio.Event()
        self._broken_by = ""

    def leave(self) -> None:
        """The client has left."""
        self._over.set()

    async def run(self, requests: AsyncIterator[bytes]) -> None:
        """Until all is answered, or taken back. Raises AioRpcError where Triton ends the stream
        otherwise, BrokenOffError where this does."""
        # Tasks of their own: what is cancelled as it reads or writes cancels Triton's stream.
        answering = asyncio.create_task(self._answer())
        passing = asyncio.create_task(self._pass_on(requests))
        passing.add_done_callback(self._look_at)
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait({answering, over}, return_when=asyncio.FIRST_COMPLETED)
            passing.cancel()
            if not answering.done():
                await self._leave(answering)
        finally:
            for one in (over, passing, answering):  # which a client may hold that reads nothing
                one.cancel()
            await asyncio.wait({passing, answering})
            self._gate.leave(self._model(), count=self._under_way)
        if self._broken_by:
            raise BrokenOffError(self._broken_by)
        if not answering.cancelled():
            answering.result()

    def _look_at(self, passing: asyncio.Task[None]) -> None:
        if not passing.cancelled() and (error := passing.exception()):
            logger.error("A client's requests are no longer passed on.", exc_info=error)
            self._break_off(f"The front has failed ({error}): send the requests again.")

    def _break_off(self, sentence: str) -> None:
        self._broken_by = sentence
        self._over.set()

    async def _pass_on(self, requests: AsyncIterator[bytes]) -> None:
        """The client's requests, until it has no more. What is refused is answered here."""
        async for content in requests:
            request = service_pb2.ModelInferRequest()
            try:
                with self._bodies.held(COPIES * len(content)):
                    request = read_message(content)
                    check_message(request, len(content))
                    await self._take(request)
                    await asyncio.shield(self._tell(request.SerializeToString()))
            except RefusedError as error:
                self._gate.refused(error.reason)
                await self._say(_refusal(request.id, str(error)))
        self._opened.set()  # or it never will be
        await asyncio.shield(self._tell(None))

    async def _take(self, request: service_pb2.ModelInferRequest) -> None:
        """Among those under way, where there is a place. Raises RefusedError."""
        model, name = Model(request.model_name, request.model_version), _named(request)
        urgent = takes_back(request)
        while not urgent and self._under_way >= MOST_UNDER_WAY:
            self._has_place.clear()
            await self._has_place.wait()
        self._gate.enter(model, urgent)
        self._under_way += 1
        request.id = request.id or GIVEN_ID + token_hex(8)
        self._sent.append(Sent(model, name, request.id))
        self._asked_for_empty |= request.parameters[EMPTY_FINAL].bool_param
        request.parameters[EMPTY_FINAL].bool_param = True

    async def _tell(self, request: bytes | None) -> None:
        """None: there is no request any more."""
        # Triton may have ended, which the answers say.
        with suppress(*_ENDED):
            async with self._to_triton:
                if request is not None:
                    await self._to_write_to().write(request)
                elif self._triton is not None:
                    await self._triton.done_writing()

    def _to_write_to(self) -> grpc.aio.StreamStreamCall:
        """Opened for the first request: those who send none cost Triton nothing."""
        if self._triton is None:
            self._triton = self._open()
            self._opened.set()
        return self._triton

    async def _answer(self) -> None:
        await self._opened.wait()
        if self._triton is None:
            return
        while (content := await self._triton.read()) is not grpc.aio.EOF:
            answer = service_pb2.ModelStreamInferResponse.FromString(content)
            sent = self._sent_as(answer.infer_response.id)
            if answer.infer_response.id.startswith(GIVEN_ID):
                answer.infer_response.id = ""
                content = answer.SerializeToString()
            if self._asked_for_empty or not _is_no_response(answer):
                await self._say(content)
            if _is_final(answer):
                self._end(sent, answer.error_message)

    def _sent_as(self, request_id: str) -> Sent | None:
        """None: it is not known which of several."""
        found = [one for one in self._sent if one.request_id == request_id]
        return found[0] if len(found) == 1 else None

    def _end(self, sent: Sent | None, error: str) -> None:
        """What was sent has all its answers."""
        self._under_way -= 1
        self._has_place.set()
        self._gate.leave(self._model() if sent is None else sent.model, error)
        if sent is not None:
            self._sent.remove(sent)
        if not self._under_way:
            self._sent.clear()

    def _model(self) -> Model | None:
        """Of all requests under way."""
        models = {one.model for one in self._sent}
        return models.pop() if len(models) == 1 else None

    async def _say(self, answer: bytes) -> None:
        async with self._to_client:
            if self._over.is_set():
                return
            try:
                async with asyncio.timeout(STALL_S):
                    await self._client.write(answer)
            except (grpc.aio.InternalError, asyncio.InvalidStateError):
                self.leave()
            except TimeoutError:
                self._break_off(f"Nothing of what is answered has been read for {STALL_S:g} s.")

    async def _leave(self, answering: asyncio.Task[None]) -> None:
        """Ends the stream to Triton as one that was answered, or, where that takes long, not so."""
        if self._triton is None:
            answering.cancel()
            return
        try:
            with suppress(TimeoutError, *_ENDED):
                async with asyncio.timeout(LEAVE_S):
                    # Triton may take no more of this stream, and yet what takes back.
                    await asyncio.gather(self._tell(None), self._take_back())
                    await asyncio.wait({answering})
        finally:
            self._triton.cancel()

    async def _take_back(self) -> None:
        """By a stream of its own: the client may have ended this one long ago."""
        if not self._sent:
            return
        telling = self._open()
        for one in self._sent.copy():
            await telling.write(_taking_back(one))
        await telling.done_writing()
        while await telling.read() is not grpc.aio.EOF:
            pass


def _is_final(answer: service_pb2.ModelStreamInferResponse) -> bool:
    """Or an error of a request that no model was asked for."""
    parameters = answer.infer_response.parameters
    return parameters[FINAL].bool_param if FINAL in parameters else bool(answer.error_message)


def _is_no_response(answer: service_pb2.ModelStreamInferResponse) -> bool:
    """Whether it is there for EMPTY_FINAL alone. What a model has sent names its version, also
    where it has none of the outputs that were asked for. (So does this, where the request does.)"""
    response = answer.infer_response
    return not (answer.error_message or response.outputs or response.model_version)


def _named(request: service_pb2.ModelInferRequest) -> str:
    """Its name, which it may have by itself. Raises RefusedError."""
    said = {
        key: request.parameters[key].string_param
        for key in (CANCEL, CANCEL_ID)
        if key in request.parameters
    }
    name = check_names(said)
    if not name:
        name = request.parameters[CANCEL_ID].string_param = token_hex(16)
    return name


def _taking_back(one: Sent) -> bytes:
    request = service_pb2.ModelInferRequest(
        model_name=one.model.name, model_version=one.model.version
    )
    request.parameters[CANCEL].string_param = one.name
    content: bytes = request.SerializeToString()
    return content


def _refusal(request_id: str, sentence: str) -> bytes:
    """As Triton has them on a stream."""
    answer = service_pb2.ModelStreamInferResponse(error_message=sentence)
    answer.infer_response.id = request_id
    content: bytes = answer.SerializeToString()
    return content
