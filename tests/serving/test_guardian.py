"""Triton's end, however it comes, is that of its models' processes and engines."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tandem.killing import FAMILY
from tandem.serving import ServerOptions, TritonServer
from tandem.serving.processes import members
from tests.conftest import MODEL_REPOSITORY

pytestmark = [pytest.mark.triton, pytest.mark.timeout(300)]
WAIT_S = 20.0
EXIT_S = 60.0  # Triton that is told to end while it loads loads on
VLLM_S = 60.0
SHM = Path("/dev/shm")


@pytest.fixture
def server(request, tmp_path):
    """One that is being started."""
    model = getattr(request, "param", "tandem")
    one = TritonServer(ServerOptions(MODEL_REPOSITORY, (model,), log_path=tmp_path / "server.log"))
    one.start()
    yield one
    one.stop(grace=0)


KILLED = (signal.SIGKILL, True), (signal.SIGKILL, False)


@pytest.mark.parametrize(
    ("signum", "loaded"), [*KILLED, (signal.SIGSEGV, True), (signal.SIGTERM, False), *KILLED]
)
def test_nothing_is_left_behind_a_triton_that_ends(server, signum, loaded):
    """Without a guardian every other stub stays: which, is decided by what it was at."""
    if loaded:
        server.wait_ready()
    wait_until(lambda: below(server, "tandem.engine_main"))
    [engine] = below(server, "tandem.engine_main")
    family = Path(engine.environ()[FAMILY])
    assert family.exists()
    os.kill(server.pid, signum)
    assert server.exit_code(EXIT_S) is not None
    wait_until(lambda: not (members(server.identity) or family.exists()))
    assert not [*SHM.glob(f"{server.identity}*")]


def test_who_stops_a_server_waits_for_its_guardians(server):
    server.wait_ready()
    [engine] = below(server, "tandem.engine_main")
    family = Path(engine.environ()[FAMILY])
    os.kill(server.pid, signal.SIGKILL)
    server.exit_code(EXIT_S)
    server.stop()
    assert not family.exists()
    assert not members(server.identity)


@pytest.mark.vllm
@pytest.mark.parametrize("server", ["tandem_vllm"], indirect=True)
@pytest.mark.parametrize("begun", ["multiprocessing.forkserver", "VLLM::EngineCore"])
def test_nothing_is_left_of_a_vllm_that_was_being_started(server, begun):
    """Its processes do not notice by themselves that who started them has gone."""
    wait_until(lambda: below(server, begun), VLLM_S)
    os.kill(server.pid, signal.SIGKILL)
    server.exit_code(EXIT_S)
    wait_until(lambda: not members(server.identity))


def below(server, word):
    """The processes that it started, and say so."""
    family = psutil.Process(server.pid).children(recursive=True)
    return [one for one in family if word in command_of(one)]


def command_of(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has just ended
        return ""


def wait_until(holds, seconds=WAIT_S):
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.05)
