"""The engine vllm behind a real Triton: what becomes of requests when its core is killed."""

import contextlib
import time

import psutil
import pytest

from tandem.killing import FAMILY
from tandem.metrics import RESTARTS, UP
from tandem_client import GrpcClient, Unavailable
from tests.conftest import steady_server
from tests.triton.scrape import waited
from tools.soak.shared_memory import SharedMemory
from tools.soak.watch import footprint

pytestmark = [pytest.mark.vllm, pytest.mark.triton, pytest.mark.timeout(600)]

MODEL = "tandem_vllm"
PROMPT = "def main(argv):\n"
GREEDY = {"temperature": 0.0, "ignore_eos": True}
START_S = 180.0  # of an engine, on a busy machine


@pytest.fixture(scope="module")
def shared():
    """Shared memory from before the server on."""
    return SharedMemory()


@pytest.fixture(scope="module")
def server(tmp_path_factory, shared):
    with steady_server(MODEL, tmp_path_factory.mktemp("vllm")) as server:
        yield server


def family(server):
    """Our engine's process and vLLM's, the core among them."""
    below = psutil.Process(server.pid).children(recursive=True)
    [engine] = [process for process in below if "tandem.engine_main" in process.cmdline()]
    return engine, engine.children(recursive=True)


def answered(client):
    """The text, once the engine takes requests again."""
    limit = time.monotonic() + START_S
    while time.monotonic() < limit:
        with contextlib.suppress(Unavailable):
            return client.generate(PROMPT, GREEDY, max_tokens=32).text
        time.sleep(0.2)
    pytest.fail("the engine did not come back")


def test_a_killed_core_is_said_and_repaired_and_leaves_nothing(server, shared):
    triton, (engine, others) = server.pid, family(server)
    [core] = [one for one in others if "EngineCore" in " ".join(one.cmdline())]
    assert len({one.environ()[FAMILY] for one in (engine, *others)}) == 1
    before = footprint(server, shared)
    with GrpcClient(server.endpoints.grpc, MODEL) as client:
        text = answered(client)
        running = [client.stream(PROMPT, GREEDY, max_tokens=1500) for _ in range(2)]
        for chunks in running:
            next(chunks)
        core.kill()
        for chunks in running:
            with pytest.raises(Unavailable, match=r"vLLM's engine has ended .*: send the request"):
                list(chunks)
        assert not psutil.wait_procs([engine, *others], timeout=15)[1]
        assert answered(client) == text
    found = waited(server.endpoints, lambda found: found[RESTARTS,] == found[UP,] == 1)
    assert (found[RESTARTS,], found[UP,]) == (1, 1)
    assert (server.pid, server.exit_code()) == (triton, None)
    assert footprint(server, shared)[:2] == before[:2]


def test_nothing_outlives_the_server(server, shared):
    engine, others = family(server)
    server.stop()
    assert not psutil.wait_procs([engine, *others], timeout=5)[1]
    assert not shared.left(server.identity)
