"""Both fronts, from their start to a signal."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import grpc
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import disable_created_metrics

from tandem.errors import ConfigError
from tandem.front.door import Door
from tandem.front.gate import Full, Gate, Refusals
from tandem.front.grpc_front import GrpcFront
from tandem.front.grpc_server import KnownMethods
from tandem.front.http_front import HttpFront, MetricsFront
from tandem.front.room import for_bodies, for_calls
from tandem.serving import Endpoints, ServingError

_TO_TRITON: Final = [
    ("grpc.enable_http_proxy", 0),  # which knows no way to this machine itself
    ("grpc.max_receive_message_length", -1),  # of what Triton answers
    # It may be loading models, which takes long.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_TO_CLIENTS: Final = [
    ("grpc.max_concurrent_streams", 1024),  # of a connection; more wait in the client
    ("grpc.so_reuseport", 0),  # a port that is taken is taken
    # Who is gone without a word is found out; who asks whether this is there may.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
]
_KEEP_ALIVE: Final = {
    socket.TCP_KEEPIDLE: 30,
    socket.TCP_KEEPINTVL: 10,
    socket.TCP_KEEPCNT: 3,
}
_CONNECT_S = 5.0
_GRACE_S = 5.0  # for answers that are on their way when the front ends
_IDLE_S = 75.0  # that a connection is kept without a request
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Closing = Callable[[], Awaitable[None]]


async def serve(triton: Endpoints, door: Door) -> None:
    """Until SIGINT or SIGTERM. triton: "" for a protocol that is left out. Raises ConfigError where
    an address cannot be had."""
    _allow_connections()
    _log_no_mistakes_of_clients()
    asked_to_end = asyncio.Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(one, asked_to_end.set)
    disable_created_metrics()
    refusals, full = Refusals(), Full()
    async with AsyncExitStack() as stack:
        closing: list[Closing] = []
        bodies = for_bodies(door.most_bytes)
        over = [asyncio.create_task(asked_to_end.wait())]
        if triton.grpc:
            channel = grpc.aio.insecure_channel(triton.grpc, _TO_TRITON)
            await stack.enter_async_context(channel)
            gate = Gate(for_calls(door.most_calls), full, refusals)
            front = GrpcFront(channel, gate, bodies)
            server = await _grpc(front, door)
            over.append(asyncio.create_task(server.wait_for_termination()))
            closing.append(partial(_close, server, front))
        session = await stack.enter_async_context(
            ClientSession(
                connector=TCPConnector(limit=0),
                timeout=ClientTimeout(total=None, sock_connect=_CONNECT_S),
            )
        )
        if triton.http:
            gate = Gate(for_calls(door.most_calls), full, refusals)
            http = HttpFront(triton.http, session, gate, bodies, door.most_bytes)
            stack.push_async_callback(http.close)
            closing.append(await _http(http.handle, door.host, door.ports.http))
        if triton.metrics:
            metrics = MetricsFront(triton.metrics, session, refusals)
            closing.append(await _http(metrics.handle, door.host, door.ports.metrics))
        await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        if not asked_to_end.is_set():  # nothing else has gRPC's server end
            raise ServingError(f"gRPC's server has ended ({over[-1].exception()}).")
        await asyncio.gather(*(close() for close in closing))


async def _grpc(front: GrpcFront, door: Door) -> KnownMethods:
    most = ("grpc.max_receive_message_length", door.most_bytes)
    server = KnownMethods(front.handlers(), [most, *_TO_CLIENTS])
    address = _address(door.host, door.ports.grpc)
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise _taken(address, error) from None
    await server.start()
    return server


async def _close(server: KnownMethods, front: GrpcFront) -> None:
    await server.stop(_GRACE_S)
    await front.close()


async def _http(handler: Handler, host: str, port: int) -> Closing:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(
        app,
        handler_cancellation=True,  # where the client leaves
        access_log=None,
        auto_decompress=False,
        keepalive_timeout=_IDLE_S,
        shutdown_timeout=_GRACE_S / 2,  # aiohttp takes it twice
    )
    await runner.setup()
    try:
        await web.SockSite(runner, _listening(host, port)).start()
    except OSError as error:
        raise _taken(_address(host, port), error) from None
    return runner.cleanup


def _listening(host: str, port: int) -> socket.socket:
    """What accepts connections that find out when the other end is gone without a word."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, *_, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # as gRPC does of ::
    listening = socket.create_server(address[:2], family=family, dualstack_ipv6=both)
    for option, value in _KEEP_ALIVE.items():
        listening.setsockopt(socket.IPPROTO_TCP, option, value)
    return listening


def _taken(address: str, error: Exception) -> ConfigError:
    return ConfigError(f"The front cannot listen on {address} ({error}): choose another.")


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _allow_connections() -> None:
    """As many as this process may have: each request needs two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _log_no_mistakes_of_clients() -> None:
    """aiohttp would log what is no HTTP as an error of its own, with a traceback."""
    logging.getLogger("aiohttp.server").addFilter(
        lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
    )
