"""The model whose target has two ranks and whose draft has one, behind a real server."""

import contextlib
import signal
import time

import psutil
import pytest

from tandem_client import GrpcClient, Unavailable
from tests.conftest import steady_server
from tests.triton.conftest import PROMPT
from tests.triton.protocol import WAIT
from tools.soak.shared_memory import SharedMemory
from tools.soak.watch import footprint

MODEL = "tandem_tp"
MODULES = {"tandem.engine_main", "tandem.runners.rank_worker"}
GREEDY = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def shared():
    """Shared memory from before the server on."""
    return SharedMemory()


@pytest.fixture(scope="module")
def server(tmp_path_factory, shared):
    with steady_server(MODEL, tmp_path_factory.mktemp("tp")) as server:
        yield server


def ranks(server):
    """The engine's process and that of the other rank."""
    family = psutil.Process(server.pid).children(recursive=True)
    return [process for process in family if MODULES & set(process.cmdline())]


def test_it_writes_what_one_rank_writes(server, greedy_text):
    with GrpcClient(server.endpoints.grpc, MODEL) as client:
        completion = client.generate(PROMPT, GREEDY, max_tokens=64)
    assert completion.text == greedy_text
    assert completion.stats.accepted > 0


@pytest.mark.parametrize(
    ("signum", "reason"),
    [
        (signal.SIGKILL, "Rank 1 ended with code -9"),
        (signal.SIGSTOP, "Rank 1 has not shown a sign of life"),
    ],
)
def test_a_lost_rank_is_said_and_repaired(server, shared, greedy_text, signum, reason):
    before, occupied = ranks(server), footprint(server, shared)
    assert len(before) == 2
    [other] = [p for p in before if "tandem.runners.rank_worker" in p.cmdline()]
    with GrpcClient(server.endpoints.grpc, MODEL) as client:
        with client.stream(PROMPT, GREEDY, max_tokens=1000) as chunks:
            next(chunks)
            other.send_signal(signum)
            with pytest.raises(Unavailable, match=reason):
                list(chunks)
        assert not psutil.wait_procs(before, timeout=5)[1]
        limit = time.monotonic() + WAIT
        text = ""
        while not text:
            with contextlib.suppress(Unavailable):  # it is starting again
                text = client.generate(PROMPT, GREEDY, max_tokens=64).text
            assert time.monotonic() < limit
            time.sleep(0.1)
    assert text == greedy_text
    assert footprint(server, shared)[:2] == occupied[:2]


def test_nothing_outlives_the_server(server, shared):
    family = ranks(server)
    server.stop()
    assert not psutil.wait_procs(family, timeout=5)[1]
    assert not shared.left(server.identity)
