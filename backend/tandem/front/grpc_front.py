"""Before Triton's gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from tritonclient.grpc import service_pb2

from tandem.front.checks import RefusedError, check_message, read_message, takes_back
from tandem.front.gate import NOT_LET_IN, Gate, Model
from tandem.front.grpc_stream import BrokenOffError, GrpcStream
from tandem.front.room import COPIES, NoRoomError, Room, for_streams

_TRITON: Final = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
SERVICE = f"/{_TRITON.full_name}/"
_OF_SERVER = ("ServerLive", "ServerReady", "ServerMetadata")
_OF_MODEL = ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics")
HEALTH = "/grpc.health.v1.Health/Check"  # as Kubernetes and balancers ask
ASKING = frozenset({HEALTH, *(SERVICE + name for name in (*_OF_SERVER, *_OF_MODEL))})
ONE, STREAM = SERVICE + "ModelInfer", SERVICE + "ModelStreamInfer"
_REFLECTION: Final = "/grpc.reflection.{}.ServerReflection/ServerReflectionInfo"
REFUSED = {SERVICE + method.name for method in _TRITON.methods} - {*ASKING, ONE, STREAM}
# Who asks for them does without where there are none, and only there.
NOT_THERE = {f"/grpc.health.v1.Health/{name}" for name in ("Watch", "List")}
NOT_THERE |= {_REFLECTION.format(version) for version in ("v1", "v1alpha")}
MOST_STREAMS: Final = 4096
"""Open at a time: also those that ask nothing take memory."""


class GrpcFront:
    """Passes calls on as bytes. No metadata goes with them: some of it ends Triton 2.51."""

    def __init__(self, triton: grpc.aio.Channel, gate: Gate, bodies: Room) -> None:
        self._triton = triton
        self._gate = gate
        self._bodies = bodies
        self._places = for_streams(MOST_STREAMS)
        self._streams: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Behind the last call: Triton is told of what has lost its client."""
        if self._streams:
            await asyncio.wait(self._streams)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """Of all methods that are let in, or refused by a sentence."""
        found = {STREAM: grpc.stream_stream_rpc_method_handler(self._infer)}
        found[ONE] = grpc.unary_unary_rpc_method_handler(self._infer_once)
        for method in ASKING:
            found[method] = grpc.unary_unary_rpc_method_handler(self._passing_on(method))
        for method in REFUSED:
            found[method] = grpc.stream_stream_rpc_method_handler(self._refuse)
        for method in NOT_THERE:
            found[method] = grpc.stream_stream_rpc_method_handler(self._lack)
        return found

    def _passing_on(self, method: str) -> Any:
        async def pass_on(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            try:
                return await self._pass_on(method, request)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")
                raise  # never: abort does

        return pass_on

    async def _pass_on(self, method: str, request: bytes) -> bytes:
        answer: bytes = await self._triton.unary_unary(method)(request)
        return answer

    async def _infer_once(self, content: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            with self._bodies.held(COPIES * len(content)):
                return await self._asked_once(content, context)
        except RefusedError as error:
            self._gate.refused(error.reason)
            full = isinstance(error, NoRoomError)
            code = grpc.StatusCode.UNAVAILABLE if full else grpc.StatusCode.INVALID_ARGUMENT
            await context.abort(code, str(error))
            raise  # never: abort does

    async def _asked_once(self, content: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """Raises RefusedError."""
        request = read_message(content)
        check_message(request, len(content))
        model = Model(request.model_name, request.model_version)
        self._gate.enter(model, takes_back(request))
        said = ""
        try:
            return await self._pass_on(ONE, content)
        except grpc.aio.AioRpcError as error:
            said = error.details() or ""
            await context.abort(error.code(), said)
            raise  # never: abort does
        finally:
            self._gate.leave(model, said)

    async def _infer(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> None:
        """A stream of requests and their answers."""
        try:
            self._places.take()
        except NoRoomError as error:
            self._gate.refused(error.reason)
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        stream = GrpcStream(self._triton.stream_stream(STREAM), context, self._gate, self._bodies)
        running = asyncio.create_task(stream.run(requests))
        self._streams.add(running)
        running.add_done_callback(self._ended)
        try:
            await asyncio.shield(running)  # which goes on where the client has left
        except asyncio.CancelledError:
            stream.leave()
            raise
        except BrokenOffError as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")

    def _ended(self, running: asyncio.Task[None]) -> None:
        """How is told to a client that is there, and else to nobody."""
        self._places.give_back()
        self._streams.discard(running)
        if not running.cancelled():
            running.exception()

    async def _refuse(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        self._gate.refused(NOT_LET_IN)
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED,
            "This server lets in what asks for models and their answers: ask its operator.",
        )
        yield b""  # never

    async def _lack(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "This server has no such method.")
        yield b""  # never
