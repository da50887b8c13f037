"""Before Triton's gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from tandem.front.checks import RefusedError, check_message
from tandem.front.grpc_stream import GrpcStream

SERVICE = "/inference.GRPCInferenceService/"
_OF_SERVER = ("ServerLive", "ServerReady", "ServerMetadata")
_OF_MODEL = ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics")
HEALTH = "/grpc.health.v1.Health/Check"  # as Kubernetes and balancers ask
ASKING = frozenset({HEALTH, *(SERVICE + name for name in (*_OF_SERVER, *_OF_MODEL))})
ONE, STREAM = SERVICE + "ModelInfer", SERVICE + "ModelStreamInfer"


class GrpcFront(grpc.GenericRpcHandler):
    """Passes calls on as bytes. No metadata goes with them: some of it ends Triton 2.51."""

    def __init__(self, triton: grpc.aio.Channel) -> None:
        self._triton = triton
        self._leaving: set[asyncio.Task[None]] = set()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Of any method."""
        method = details.method
        if method == STREAM:
            return grpc.stream_stream_rpc_method_handler(self._infer)
        if method in ASKING or method == ONE:
            return grpc.unary_unary_rpc_method_handler(self._asked(method, method == ONE))
        return grpc.stream_stream_rpc_method_handler(_refuse)

    def _asked(self, method: str, infers: bool) -> Any:
        """What passes a call on. infers: what it asks may break Triton."""

        async def ask(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            try:
                if infers:
                    check_message(request)
                found: bytes = await self._triton.unary_unary(method)(request)
                return found
            except RefusedError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")
            raise AssertionError  # abort raises

        return ask

    async def _infer(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> None:
        """A stream of requests and their answers."""
        stream = GrpcStream(self._triton.stream_stream(STREAM), context)
        try:
            await stream.run(requests, self._leaving)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")


async def _refuse(
    requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
) -> AsyncIterator[bytes]:
    await context.abort(
        grpc.StatusCode.PERMISSION_DENIED,
        "This server lets in what asks for models and their answers: ask its operator.",
    )
    yield b""  # never
