"""Clients over gRPC: one bidirectional stream a request, all on one channel.

`tritonclient`'s own client holds a single stream an object, and an error in it carries no code.
Here every request is a call of its own on the stub that `tritonclient` generates: it is cancelled
alone, and with Triton's `triton_grpc_error` mode its error ends the call with the right status.
"""

from collections.abc import AsyncGenerator, Generator, Mapping

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tandem_client import errors
from tandem_client.base import AsyncClient, Client
from tandem_client.types import Chunk
from tandem_client.wire import Fields, proto_outputs, to_chunk, to_proto

_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_READY_TIMEOUT = 5.0  # seconds
_CUT_OFF = "the stream ended before the answer was complete"


def _metadata(headers: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return (("triton_grpc_error", "true"), *(headers or {}).items())


def _decode(response: service_pb2.ModelStreamInferResponse) -> tuple[Chunk | None, bool]:
    """A chunk, if the response carries one, and whether it is the final response."""
    if response.error_message:
        raise errors.from_sentence(response.error_message)
    answer = response.infer_response
    final = answer.parameters["triton_final_response"].bool_param
    return (to_chunk(proto_outputs(answer)) if answer.outputs else None), final


def _translate(error: grpc.RpcError) -> errors.TandemError:
    return errors.from_grpc(error.code().name, error.details() or "")


class GrpcClient(Client):
    """Blocking client for `url` = HOST:PORT.

    `details=False` asks only for what Triton's vLLM backend knows. `headers` go with every
    request; `credentials` make the channel a TLS channel.
    """

    def __init__(
        self,
        url: str = "localhost:8001",
        model: str = "tandem",
        *,
        details: bool = True,
        headers: Mapping[str, str] | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        super().__init__(model, details)
        self._metadata = _metadata(headers)
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
            return bool(self._stub.ModelReady(request, timeout=_READY_TIMEOUT).ready)
        except grpc.RpcError:
            return False

    def close(self) -> None:
        """Close the channel, which cancels what is still under way on it."""
        self._channel.close()

    def _open(self, fields: Fields, timeout: float | None) -> Generator[Chunk, None, None]:
        requests = iter([to_proto(self.model, fields)])
        call = self._stub.ModelStreamInfer(requests, timeout=timeout, metadata=self._metadata)
        final = False
        try:
            for response in call:
                chunk, final = _decode(response)
                if chunk:
                    yield chunk
        except grpc.RpcError as error:
            raise _translate(error) from None
        finally:
            call.cancel()
        if not final:
            raise errors.Unavailable(_CUT_OFF)


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
    ) -> None:
        super().__init__(model, details)
        self._metadata = _metadata(headers)
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
            return bool((await self._stub.ModelReady(request, timeout=_READY_TIMEOUT)).ready)
        except grpc.RpcError:
            return False

    async def close(self) -> None:
        """Close the channel, which cancels what is still under way on it."""
        await self._channel.close()

    async def _open(self, fields: Fields, timeout: float | None) -> AsyncGenerator[Chunk, None]:
        requests = iter([to_proto(self.model, fields)])
        call = self._stub.ModelStreamInfer(requests, timeout=timeout, metadata=self._metadata)
        final = False
        try:
            async for response in call:
                chunk, final = _decode(response)
                if chunk:
                    yield chunk
        except grpc.RpcError as error:
            raise _translate(error) from None
        finally:
            call.cancel()
        if not final:
            raise errors.Unavailable(_CUT_OFF)
