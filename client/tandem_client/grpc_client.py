"""Clients over gRPC: one bidirectional stream a request, all on one channel.

`tritonclient`'s own client holds a single stream an object. Here every request is a call of its
own on the stub that `tritonclient` generates, so each is cancelled alone.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tandem_client import errors
from tandem_client.base import AsyncClient, Client
from tandem_client.types import Chunk
from tandem_client.wire import Fields, proto_outputs, to_chunk, to_proto

_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_READY_TIMEOUT = 5.0  # seconds
_CUT_OFF = "the stream ended before the answer was complete"
_CLOSED = "the client was closed before the answer was complete"


def _metadata(headers: Mapping[str, str] | None, status_codes: bool) -> tuple[tuple[str, str], ...]:
    mode = (("triton_grpc_error", "true"),) if status_codes else ()
    return (*mode, *(headers or {}).items())


class _Decoder:
    """Turns one call's responses into chunks and notices how it ended.

    Whatever the answer is, the call is read to its end: a Triton whose client hangs up while the
    final response is on its way keeps the request, and the model can no longer be unloaded.
    """

    def __init__(self) -> None:
        self._answering = False
        self._final = False
        self._error: errors.TandemError | None = None

    def decode(self, response: service_pb2.ModelStreamInferResponse) -> Iterator[Chunk]:
        """The chunk of a response, if it carries one."""
        if response.error_message:
            self._error = errors.from_sentence(response.error_message, answering=self._answering)
            return
        answer = response.infer_response
        self._final = answer.parameters["triton_final_response"].bool_param
        if answer.outputs:
            self._answering = True
            yield to_chunk(proto_outputs(answer))

    @property
    def is_over(self) -> bool:
        """Whether an error or the final response has come, whatever becomes of the call."""
        return self._final or self._error is not None

    def end(self) -> None:
        """Check, when the call is over, that the answer was complete."""
        if self._error:
            raise self._error
        if not self._final:
            raise errors.Unavailable(_CUT_OFF)


def _translate(error: grpc.RpcError) -> errors.TandemError:
    return errors.from_grpc(error.code().name, error.details() or "")


class GrpcClient(Client):
    """Blocking client for `url` = HOST:PORT.

    `details=False` asks only for what Triton's vLLM backend knows. `headers` go with every
    request; `credentials` make the channel a TLS channel.

    An error on Triton's streams is a sentence without a code, and its type is told from the words.
    `status_codes=True` asks Triton for the code too: not with Triton 2.51, whose server crashes in
    that mode.
    """

    def __init__(
        self,
        url: str = "localhost:8001",
        model: str = "tandem",
        *,
        details: bool = True,
        headers: Mapping[str, str] | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        status_codes: bool = False,
    ) -> None:
        super().__init__(model, details)
        self._metadata = _metadata(headers, status_codes)
        self._headers = _metadata(headers, status_codes=False)
        self._channel = (
            grpc.secure_channel(url, credentials, options=_OPTIONS)
            if credentials
            else grpc.insecure_channel(url, options=_OPTIONS)
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def is_ready(self) -> bool:
        """Whether the model can answer."""
        try:
            request = service_pb2.ModelReadyRequest(name=self.model)
            call = self._stub.ModelReady
            return bool(call(request, timeout=_READY_TIMEOUT, metadata=self._headers).ready)
        except grpc.RpcError:
            return False

    def close(self) -> None:
        """Close the channel, which cancels what is still under way on it."""
        self._channel.close()

    def _open(self, fields: Fields, timeout: float | None) -> Generator[Chunk, None, None]:
        requests = iter([to_proto(self.model, fields)])
        call = self._stub.ModelStreamInfer(requests, timeout=timeout, metadata=self._metadata)
        decoder = _Decoder()
        try:
            for response in call:
                yield from decoder.decode(response)
        except grpc.RpcError as error:
            if not decoder.is_over:
                raise _translate(error) from None
        finally:
            call.cancel()
        decoder.end()


class AsyncGrpcClient(AsyncClient):
    """Asyncio client; the arguments are those of `GrpcClient`."""

    def __init__(
        self,
        url: str = "localhost:8001",
        model: str = "tandem",
        *,
        details: bool = True,
        headers: Mapping[str, str] | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        status_codes: bool = False,
    ) -> None:
        super().__init__(model, details)
        self._metadata = _metadata(headers, status_codes)
        self._headers = _metadata(headers, status_codes=False)
        self._channel = (
            grpc.aio.secure_channel(url, credentials, options=_OPTIONS)
            if credentials
            else grpc.aio.insecure_channel(url, options=_OPTIONS)
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def is_ready(self) -> bool:
        """Whether the model can answer."""
        try:
            request = service_pb2.ModelReadyRequest(name=self.model)
            call = self._stub.ModelReady
            return bool((await call(request, timeout=_READY_TIMEOUT, metadata=self._headers)).ready)
        except grpc.RpcError:
            return False

    async def close(self) -> None:
        """Close the channel, which cancels what is still under way on it."""
        await self._channel.close()

    async def _open(self, fields: Fields, timeout: float | None) -> AsyncGenerator[Chunk, None]:
        requests = iter([to_proto(self.model, fields)])
        call = self._stub.ModelStreamInfer(requests, timeout=timeout, metadata=self._metadata)
        decoder = _Decoder()
        try:
            async for response in call:
                for chunk in decoder.decode(response):
                    yield chunk
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise errors.Cancelled(_CLOSED) from None  # not of the task: of the channel
        except grpc.RpcError as error:
            if not decoder.is_over:
                raise _translate(error) from None
        finally:
            call.cancel()
        decoder.end()
