"""When a model that is unloaded has waited long enough for its requests."""

import contextlib
import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tandem import draining
from tandem.draining import Drain, Load

READY, UNREADY = 200, 400


class Frontend(BaseHTTPRequestHandler):
    """Answers as Triton's HTTP port does."""

    ready, state = READY, "READY"

    def do_GET(self):
        answers = {
            "/v2": (200, b'{"name": "triton", "extensions": []}'),
            "/v2/models/pair/versions/3/ready": (self.ready, b""),
        }
        self.answer(*answers.get(self.path, (404, b"")))

    def do_POST(self):
        entries = [{"name": "other"}, {"name": "pair", "version": "3", "state": self.state}]
        known = self.path == "/v2/repository/index"
        self.answer(200 if known else 404, json.dumps(entries).encode())

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Metrics(Frontend):
    """As Triton's metrics port, it answers whatever it is asked for."""

    def do_GET(self):
        self.answer(200, b"")

    def do_POST(self):
        self.answer(405, b'{"error": "Method Not Allowed"}')


@pytest.fixture
def load(monkeypatch):
    """Of a server that is this process, with its ports of other protocols."""
    monkeypatch.setattr(draining, "ANSWER_S", 60.0)
    monkeypatch.setattr(Frontend, "ready", READY)
    monkeypatch.setattr(Frontend, "state", "READY")
    with (
        socket.create_server(("127.0.0.1", 0)) as grpc,
        ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as metrics,
        ThreadingHTTPServer(("127.0.0.1", 0), Frontend) as http,
    ):

        def hang_up():
            with contextlib.suppress(OSError):
                while True:
                    grpc.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        for server in (metrics, http):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Load(os.getpid(), "pair", "3")
        for server in (metrics, http):
            server.shutdown()
        grpc.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("ready", "state", "unloading"),
    [
        (READY, "READY", False),
        (UNREADY, "READY", False),  # its engine is being started again
        (UNREADY, "LOADING", False),
        (UNREADY, "UNLOADING", True),
    ],
)
def test_whether_it_is_being_unloaded(load, ready, state, unloading):
    Frontend.ready, Frontend.state = ready, state
    assert load.unloading() is unloading


def test_nobody_says_without_http():
    assert Load(os.getpid(), "pair", "3").unloading() is False


class Answers:
    """A load that says what is next."""

    def __init__(self, *unloading):
        self.left = list(unloading)

    def unloading(self):
        return self.left.pop(0)


def test_once_unloaded_it_has_its_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(draining.time, "monotonic", lambda: now[0])
    drain = Drain(Answers(False, True), 0.3)  # asked no more: a new load may have taken the name
    assert not drain.over()
    now[0] += 5
    assert not drain.over()
    now[0] += 0.2
    assert not drain.over()
    now[0] += 0.2
    assert drain.over()
    assert "drain_timeout, 0.3 s" in drain.reason
