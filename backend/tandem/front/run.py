"""Both fronts, from their start to a signal."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

from tandem.errors import ConfigError
from tandem.front import MOST_BYTES, MOST_CALLS
from tandem.front.grpc_front import GrpcFront
from tandem.front.http_front import HttpFront, MetricsFront

_CHANNEL = [
    ("grpc.max_receive_message_length", -1),  # of what Triton answers
    # It may be loading models, which takes long.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_CONNECT_S = 5.0
_GRACE_S = 5.0  # for answers that are on their way when the front ends
_IDLE_S = 75.0  # that a connection is kept without a request
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class FrontOptions:
    """What stands before what. Of each protocol: Triton's host:port, None where it is left out,
    and the port that clients use."""

    triton_http: str | None = None
    triton_grpc: str | None = None
    triton_metrics: str | None = None
    host: str = "127.0.0.1"
    http_port: int = 8080
    grpc_port: int = 8081
    metrics_port: int = 8082
    most_calls: int = MOST_CALLS
    """At a time, of each protocol, of which one more is refused."""
    most_bytes: int = MOST_BYTES
    """Of a request, unpacked where it is compressed."""


async def serve(options: FrontOptions) -> None:
    """Until SIGINT or SIGTERM. Raises ConfigError where an address cannot be had."""
    _allow_connections()
    asked_to_end = asyncio.Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(one, asked_to_end.set)
    async with AsyncExitStack() as stack:
        if options.triton_grpc:
            await stack.enter_async_context(_grpc(options, options.triton_grpc))
        session = await stack.enter_async_context(
            ClientSession(
                connector=TCPConnector(limit=0),
                timeout=ClientTimeout(total=None, sock_connect=_CONNECT_S),
            )
        )
        if options.triton_http:
            front = HttpFront(options.triton_http, session, options.most_calls)
            await stack.enter_async_context(_http(front.handle, options, options.http_port))
        if options.triton_metrics:
            metrics = MetricsFront(options.triton_metrics, session)
            await stack.enter_async_context(_http(metrics.handle, options, options.metrics_port))
        await asked_to_end.wait()


@asynccontextmanager
async def _grpc(options: FrontOptions, triton: str) -> AsyncIterator[None]:
    async with grpc.aio.insecure_channel(triton, _CHANNEL) as channel:
        server = grpc.aio.server(
            handlers=[GrpcFront(channel)],
            options=[
                ("grpc.max_receive_message_length", options.most_bytes),
                ("grpc.so_reuseport", 0),  # a port that is taken is taken
            ],
            maximum_concurrent_rpcs=options.most_calls,
        )
        address = _address(options.host, options.grpc_port)
        try:
            server.add_insecure_port(address)
        except RuntimeError as error:
            raise _taken(address, error) from None
        await server.start()
        try:
            yield
        finally:
            await server.stop(_GRACE_S)


@asynccontextmanager
async def _http(handler: Handler, options: FrontOptions, port: int) -> AsyncIterator[None]:
    app = web.Application(client_max_size=options.most_bytes)
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(
        app,
        handler_cancellation=True,  # where the client leaves
        access_log=None,
        keepalive_timeout=_IDLE_S,
        shutdown_timeout=_GRACE_S,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, options.host, port).start()
    except OSError as error:
        raise _taken(_address(options.host, port), error) from None
    else:
        yield
    finally:
        await runner.cleanup()


def _taken(address: str, error: Exception) -> ConfigError:
    return ConfigError(f"The front cannot listen on {address} ({error}): choose another.")


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _allow_connections() -> None:
    """As many as this process may have: each request needs two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
