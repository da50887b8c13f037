"""Stands before Triton's gRPC for clients that are not trusted, as docker/front.conf for HTTP.

It lets in what asks for models and their answers: nothing that loads or unloads one, registers
shared memory, or changes tracing or logging. Requests are passed on as they are, but for those that
end the model's process in Triton 2.51 before the model sees them: shapes of more elements than the
message could hold (docs/operations.md, "What a request may say").
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from tandem.validation import short

SERVICE = "/inference.GRPCInferenceService/"
ASKING = frozenset(
    {"ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig"}
)
ONE, STREAM = "ModelInfer", "ModelStreamInfer"
MOST_DIMENSIONS = 16
UNLIMITED = [("grpc.max_receive_message_length", -1)]
"""Of what Triton answers."""
GRACE_S = 5.0  # for answers that are on their way when the front ends


def trouble(content: bytes) -> str | None:
    """What is wrong with a ModelInferRequest, a sentence; None: it may be passed on."""
    try:
        request = service_pb2.ModelInferRequest.FromString(content)
    except DecodeError:
        return "The message is no ModelInferRequest: send what Triton's protocol says."
    for tensor in request.inputs:
        if not _fits(tensor.shape, len(content)):
            return (
                f"The shape {short(list(tensor.shape[:MOST_DIMENSIONS]))} of the input "
                f"{short(tensor.name)} is of more elements than the message has bytes, or of too "
                f"many dimensions ({MOST_DIMENSIONS} at most): send the shape of what is sent."
            )
    for named in (request, *request.inputs, *request.outputs):
        if "shared_memory_region" in named.parameters:
            return "Shared memory is not for clients of this server: send tensors in the message."
    return None


def _fits(shape: Sequence[int], size: int) -> bool:
    """Whether so many bytes may hold it. (A product of millions would take long.)"""
    if len(shape) > MOST_DIMENSIONS or min(shape, default=0) < 0:
        return False
    return math.prod(shape) <= size


class Front(grpc.GenericRpcHandler):
    """Passes calls on as bytes. No metadata goes with them: some of it ends Triton 2.51."""

    def __init__(self, triton: grpc.aio.Channel) -> None:
        self._triton = triton

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Of any method."""
        name = details.method.removeprefix(SERVICE)
        if name == STREAM:
            return grpc.stream_stream_rpc_method_handler(self._infer)
        if name in ASKING or name == ONE:
            return grpc.unary_unary_rpc_method_handler(self._asked(details.method, name == ONE))
        return grpc.stream_stream_rpc_method_handler(_refuse)

    def _asked(self, method: str, infers: bool) -> Any:
        """What passes a call on. infers: what it asks may break Triton."""

        async def ask(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            wrong = trouble(request) if infers else None
            if wrong is not None:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)
            try:
                found: bytes = await self._triton.unary_unary(method)(request)
                return found
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")
                raise  # never: abort does

        return ask

    async def _infer(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        """A stream of requests and their answers; one that is refused ends it."""
        said: list[str] = []

        async def let_in() -> AsyncIterator[bytes]:
            async for request in requests:
                wrong = trouble(request)
                if wrong is not None:
                    said.append(wrong)
                    call.cancel()
                    return
                yield request

        call = self._triton.stream_stream(SERVICE + STREAM)(let_in())
        try:
            async for answer in call:
                yield answer
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
        except asyncio.CancelledError:
            if not said:  # the client has left
                raise
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, said[0])
        finally:
            call.cancel()


async def _refuse(
    requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
) -> AsyncIterator[bytes]:
    await context.abort(
        grpc.StatusCode.PERMISSION_DENIED,
        "This server lets in what asks for models and their answers: ask its operator.",
    )
    yield b""  # never


async def serve(triton: str, listen: str, most: int) -> None:
    """Until SIGINT or SIGTERM. triton, listen: HOST:PORT; most: calls at a time, of which one more
    is refused. Raises RuntimeError where `listen` cannot be had."""
    asked_to_end = asyncio.Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(one, asked_to_end.set)
    async with grpc.aio.insecure_channel(triton, UNLIMITED) as channel:
        server = grpc.aio.server(handlers=[Front(channel)], maximum_concurrent_rpcs=most)
        server.add_insecure_port(listen)
        await server.start()
        await asked_to_end.wait()
        await server.stop(GRACE_S)
