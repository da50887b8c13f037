"""gRPC's server, for methods that are known before it starts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server


class _Registered(cygrpc.AioServer):
    """Waits for calls of registered methods alone.

    gRPC 1.85 reads the name of any other method as UTF-8, outside of the call, and where it is none
    the server ends for everybody. A call of such a method waits here for its own deadline.
    """

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        if method is None:
            return asyncio.get_running_loop().create_future()
        future: asyncio.Future[Any] = super()._make_request_call_future(method)
        return future


class KnownMethods(_server.Server):
    """A server of these methods, by their paths."""

    def __init__(
        self,
        handlers: Mapping[str, grpc.RpcMethodHandler],
        options: Sequence[tuple[str, int]] = (),
    ) -> None:
        self._loop = cygrpc.get_working_loop()  # and all else in another way than its parent
        self._server = _Registered(self._loop, None, (), (), tuple(options), None)
        self._server.add_registered_method_handlers(dict(handlers))
