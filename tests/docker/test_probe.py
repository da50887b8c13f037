"""What health checks ask, and what they find where Triton says that all is well."""

import os
import re
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import grpc
import pytest

from tandem.metrics import HEARTBEAT, UP
from tandem.serving import Endpoints
from tandem.serving.front_process import front_before
from tests.docker.files import FOLDER, IMAGES, PROBES, container


class Load(NamedTuple):
    """Of a model, as /metrics show it."""

    model: str = "tandem"
    up: int = 1
    age: float = 1.0
    """Of its heartbeat, in seconds."""

    def lines(self) -> str:
        labels = f'{{load="{id(self):x}",model="{self.model}",version="1"}}'
        return f"{UP}{labels} {self.up}\n{HEARTBEAT}{labels} {time.time() - self.age:.9e}\n"


WELL, LOST, DEAD, OTHER = Load(), Load(up=0), Load(age=30), Load("tandem_tp")


@contextmanager
def answering(answers):
    """A server on a free port that has such a text for each path, and no other."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path in answers else 400)
            self.end_headers()
            self.wfile.write(answers.get(self.path, "").encode())

        def log_message(self, *_):
            """Nothing."""

    with ThreadingHTTPServer(("localhost", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield str(server.server_port)
        server.shutdown()


@pytest.fixture(scope="module")
def grpc_port():
    """Of a server that knows no method, and says so."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("localhost:0")
    server.start()
    yield str(port)
    server.stop(None)


def probe(asked, port, grpc_port, **variables):
    """Runs it against such servers."""
    ports = {"HTTP_PORT": port, "METRICS_PORT": port, "GRPC_PORT": grpc_port}
    return subprocess.run(
        [FOLDER / "probe.sh", *asked.split()],
        env=os.environ | ports | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def healthy():
    """What such a server answers."""
    return {"/v2/health/ready": "", "/v2/health/live": "", "/metrics": WELL.lines()}


@pytest.mark.parametrize(
    ("asked", "loads", "succeeds", "said"),
    [
        ("ready", [WELL], True, ""),
        ("ready", [WELL, OTHER], True, ""),
        ("ready", [], True, ""),
        ("ready", [LOST], False, "tandem takes no requests\n"),
        ("ready", [DEAD, OTHER], False, "tandem takes no requests\n"),
        ("ready", [DEAD, WELL], True, ""),  # it was loaded again
        ("ready", [WELL, Load("tandem_tp", up=0)], False, "tandem_tp takes no requests\n"),
        ("ready tandem", [WELL, Load("tandem_tp", up=0)], True, ""),
        ("ready tandem", [LOST], False, "tandem takes no requests\n"),
        ("ready tandem", [OTHER], False, "tandem takes no requests\n"),
        ("ready tandem", [DEAD, LOST], False, "tandem takes no requests\n"),
        ("ready tandem_vllm", [WELL], False, ""),  # Triton says so
        ("live", [WELL], True, ""),
        ("live", [LOST], True, ""),  # it starts again by itself
        ("live", [DEAD], False, "tandem has lost its process\n"),
        ("live", [LOST, DEAD], True, ""),  # it is being loaded again
        ("live", [], True, ""),
    ],
)
def test_a_probe_finds_what_triton_does_not_say(asked, loads, succeeds, said, grpc_port):
    answers = {f"/v2/{path}": "" for path in ("health/ready", "health/live", "models/tandem/ready")}
    with answering(answers | {"/metrics": "".join(load.lines() for load in loads)}) as port:
        run = probe(asked, port, grpc_port)
    assert (run.returncode == 0, run.stdout) == (succeeds, said), run.stderr


@pytest.mark.parametrize("asked", ["ready", "live"])
@pytest.mark.parametrize("answers", [{}, {"/v2/health/ready": "", "/v2/health/live": ""}])
def test_a_probe_fails_where_triton_or_its_metrics_do_not_answer(answers, asked, grpc_port):
    with answering(answers) as port:
        run = probe(asked, port, grpc_port)
    assert run.returncode


@pytest.mark.parametrize("asked", ["ready", "live"])
def test_a_probe_finds_that_grpc_is_locked_up(asked):
    """It is connected to, and never answers."""
    with answering(healthy()) as port, closing(socket.create_server(("localhost", 0))) as mute:
        began = time.monotonic()
        run = probe(asked, port, str(mute.getsockname()[1]))
        assert run.returncode and time.monotonic() - began < container_timeout()
        assert probe(asked, port, "").returncode == 0  # where there is none


@pytest.mark.parametrize("asked", ["ready", "live"])
def test_a_probe_finds_that_the_front_does_not_reach_grpc(asked):
    with (
        answering(healthy() | {"/v2": ""}) as port,
        front_before(Endpoints(f"localhost:{port}", "localhost:1", f"localhost:{port}")) as front,
    ):
        own = {name: at.split(":")[-1] for name, at in front.endpoints._asdict().items()}
        metrics = {"METRICS_PORT": own["metrics"]}
        run = probe(asked, own["http"], own["grpc"], **metrics)
        assert (run.returncode, run.stdout) == (1, "gRPC is not reached\n"), run.stderr
        assert probe(asked, own["http"], "", **metrics).returncode == 0


def container_timeout():
    """Seconds that a probe may take, anywhere."""
    texts = [image.read_text() for image in IMAGES]
    docker = [int(re.search(r"HEALTHCHECK.* --timeout=(\d+)s", text)[1]) for text in texts]
    return min(*docker, *(container()[f"{name}Probe"]["timeoutSeconds"] for name in PROBES))


def test_a_probe_asks_no_proxy(grpc_port):
    proxy = "http://localhost:1"
    with answering(healthy()) as port:
        run = probe("live", port, grpc_port, http_proxy=proxy, ALL_PROXY=proxy, no_proxy="")
    assert run.returncode == 0, run.stderr
