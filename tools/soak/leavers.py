"""Clients that leave, each in the midst of one request.

`python -m tools.soak.leavers PROTOCOL URL MODEL ROOM FIELDS` (as JSON) is such a client in a
process of its own, to be killed. It says `begun` at the first response, and reads no more.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal, Protocol

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tandem_client.wire import Fields, to_proto

Kind = Literal["grpc", "http"]


class Leaver(Protocol):
    """A client whose request is on its way."""

    def begin(self) -> None:
        """Waits for the first response."""
        ...

    def leave(self) -> None:
        """Goes at once, without a word."""
        ...


class GrpcLeaver:
    """Cancels its stream. room: bytes that arrive though nobody reads; 0: the usual."""

    def __init__(self, url: str, model: str, fields: Fields, room: int = 0) -> None:
        self._channel = grpc.insecure_channel(url, options=_windows(room))
        self._over = threading.Event()
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._call = stub.ModelStreamInfer(self._requests(to_proto(model, fields)))

    def _requests(
        self, request: service_pb2.ModelInferRequest
    ) -> Iterator[service_pb2.ModelInferRequest]:
        """The stream stays open behind the request."""
        yield request
        self._over.wait()

    def begin(self) -> None:
        """Waits for the first response."""
        next(self._call)

    def read(self) -> None:
        """Reads on until it is over, or this client leaves."""
        with suppress(grpc.RpcError):
            for _ in self._call:
                pass

    def leave(self) -> None:
        """Cancels."""
        self._call.cancel()
        self._over.set()


def _windows(room: int) -> list[tuple[str, int]]:
    own = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
    sizes = ("grpc.http2.lookahead_bytes", "grpc.tcp_receive_buffer_size")
    return own + ([(name, room) for name in sizes] + [("grpc.http2.bdp_probe", 0)] if room else [])


class HttpLeaver:
    """Closes its connection. room: as above."""

    def __init__(self, url: str, model: str, fields: Fields, room: int = 0) -> None:
        host, port = url.split(":")
        self._socket = socket.socket()
        if room:  # before it connects, or the window is larger already
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        self._socket.connect((host, int(port)))
        body = json.dumps(fields)
        head = f"POST /v2/models/{model}/generate_stream HTTP/1.1\r\nHost: {url}\r\n"
        self._socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())

    def begin(self) -> None:
        """Waits for the first bytes."""
        assert self._socket.recv(16).startswith(b"HTTP/1.1 200")

    def read(self) -> None:
        """Reads on until this client leaves."""
        with suppress(OSError):
            while self._socket.recv(1 << 16):
                pass

    def leave(self) -> None:
        """Closes."""
        self._socket.close()


class KilledLeaver:
    """Is killed, in a process of its own."""

    def __init__(self, kind: Kind, url: str, model: str, fields: Fields, room: int = 0) -> None:
        arguments = [kind, url, model, str(room), json.dumps(fields)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def begin(self) -> None:
        """Waits for the first response."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"begun\n"

    def leave(self) -> None:
        """Kills, and leaves no zombie."""
        self._process.kill()
        self._process.communicate()


LEAVERS: dict[str, type[GrpcLeaver] | type[HttpLeaver]] = {"grpc": GrpcLeaver, "http": HttpLeaver}


def main(kind: str, url: str, model: str, room: str, fields: str) -> None:
    """Sends, and waits for its end."""
    client = LEAVERS[kind](url, model, json.loads(fields), int(room))
    client.begin()
    with suppress(OSError):
        print("begun", flush=True)
    sys.stdin.read()  # ends with its parent


if __name__ == "__main__":
    main(*sys.argv[1:])
