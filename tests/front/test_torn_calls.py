"""Calls that no gRPC library makes end no front."""

import random
import socket
import struct
import time
from contextlib import suppress

import grpc
import pytest

from tandem.front.grpc_front import HEALTH, ONE, SERVICE, STREAM
from tandem.serving import Endpoints
from tandem.serving.front_process import front_before

LASTS_S = 8.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS = 0, 1, 3, 4
END_STREAM, END_HEADERS = 1, 4
PATHS = [one.encode() for one in (STREAM, ONE, HEALTH, f"{SERVICE}RepositoryIndex")]
PATHS += [b"/\xff\xfe", b"/", b"", b"/a/b", b"*", PATHS[0] + b"x" * 5000]


def frame(kind, flags, stream, content):
    """Of HTTP/2 (RFC 9113, 4.1)."""
    head = struct.pack(">I", len(content))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream) + content


def length(number):
    """In a prefix of 7 bits (RFC 7541, 5.1)."""
    if number < 0x7F:
        return bytes([number])
    rest, found = number - 0x7F, b"\x7f"
    while rest >= 0x80:
        found, rest = found + bytes([rest % 0x80 | 0x80]), rest // 0x80
    return found + bytes([rest])


def header(name, value):
    """A literal that is not indexed (RFC 7541, 6.2.2)."""
    return b"\0" + length(len(name)) + name + length(len(value)) + value


class Tearing:
    """Makes calls of which much is wrong."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def noise(self):
        return self.rng.randbytes(self.rng.randrange(40))

    def headers(self):
        pick = self.rng.choice
        found = [
            (b":method", pick([b"POST"] * 4 + [b"GET", b"\xff"])),
            (b":scheme", pick([b"http"] * 4 + [b"x"])),
            (b":path", pick(PATHS)),
            (b":authority", pick([b"localhost", b"", b"\xff\xfe", self.noise()])),
            (b"te", pick([b"trailers"] * 4 + [b"x"])),
            (b"content-type", pick([b"application/grpc"] * 4 + [b"text/html"])),
        ]
        more = [(b"grpc-timeout", one) for one in (b"1S", b"0n", b"xyz", b"-1S", b"9" * 30 + b"H")]
        more += [(b"grpc-encoding", one) for one in (b"gzip", b"foo", b"\xff")]
        named = [b"user-agent", b"x-a", b"x-b-bin", b"\xff\xfe", b"host", b"grpc-trace-bin"]
        more += [(name, self.noise()) for name in named]
        return b"".join(header(*one) for one in found + self.rng.choices(more, k=2))

    def message(self):
        content = self.noise()
        whole = struct.pack(">BI", self.rng.choice([0, 0, 1, 7]), len(content)) + content
        return self.rng.choice([whole, content, b"\0\xff\xff\xff\xff" + content, bytes(5)])

    def connection(self, port):
        """Some calls over one."""
        with socket.create_connection(("127.0.0.1", port), timeout=5) as one, suppress(OSError):
            one.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
            for stream in (1, 3, 5):
                ends = END_STREAM * (self.rng.random() < 0.1)
                one.sendall(frame(HEADERS, END_HEADERS | ends, stream, self.headers()))
                for _ in range(self.rng.randrange(3)):
                    ends = END_STREAM * (self.rng.random() < 0.4)
                    one.sendall(frame(DATA, ends, stream, self.message()))
                if self.rng.random() < 0.3:
                    one.sendall(frame(RESET, 0, stream, struct.pack(">I", 8)))
            one.settimeout(0.02)
            while one.recv(1 << 16):
                pass


def test_torn_calls_end_no_front_and_no_call_beside_them(capfd):
    tearing, nobody = Tearing(5), Endpoints(*["127.0.0.1:1"] * 3)
    with (
        front_before(nobody) as front,
        grpc.insecure_channel(front.endpoints.grpc) as channel,
    ):
        port, deadline = int(front.endpoints.grpc.split(":")[-1]), time.monotonic() + LASTS_S
        while time.monotonic() < deadline:
            for _ in range(20):
                tearing.connection(port)
            with pytest.raises(grpc.RpcError) as raised:
                channel.unary_unary(f"{SERVICE}RepositoryIndex")(b"", timeout=10)
            assert raised.value.code() == grpc.StatusCode.PERMISSION_DENIED
        assert not front.fault()
    assert "rror" not in capfd.readouterr().err  # clients cannot fill the log
