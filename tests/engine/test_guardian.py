"""A model's process that its Triton has left behind is ended, and no other."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tandem import guardian

WAIT_S = 10.0
ENDS_IF_TOLD = """
import signal, sys
from multiprocessing.shared_memory import SharedMemory
shared = SharedMemory(create=True, size=4096)
print(shared.name, flush=True)
sys.stdin.read()
shared.unlink()
"""
GUARDED = """
import time
from tandem import guardian
guardian.watched()
time.sleep(60)
"""


@pytest.fixture
def triton():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.fixture
def stub():
    """A process, and its shared memory."""
    command = [sys.executable, "-c", ENDS_IF_TOLD]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes) as process:
        region = Path("/dev/shm") / process.stdout.readline().decode().strip()
        yield process, region
        process.kill()
        region.unlink(missing_ok=True)


@pytest.fixture
def watching(triton, stub):
    thread = threading.Thread(target=guardian.watch, args=(triton.pid, stub[0].pid))
    thread.start()
    yield thread
    triton.kill()
    thread.join()


def test_who_is_left_behind_is_ended_with_what_it_shared(triton, stub, watching):
    process, region = stub
    watching.join(1.0)
    assert watching.is_alive()
    assert process.poll() is None
    triton.kill()
    assert process.wait(WAIT_S) == -9
    watching.join(WAIT_S)
    assert not region.exists()


def test_who_ends_behind_triton_by_itself_is_given_the_time(triton, stub, watching):
    triton.kill()
    watching.join(guardian.GRACE_S / 2)
    stub[0].communicate()
    assert stub[0].returncode == 0


def test_the_watch_ends_with_the_watched(triton, stub, watching):
    stub[0].communicate()
    watching.join(WAIT_S)
    assert not watching.is_alive()
    assert triton.poll() is None


@pytest.mark.parametrize("named", [True, False])
def test_a_parent_that_is_not_triton_means_that_triton_has_gone(named):
    """A stub's arguments name the process that started it."""
    starts = (
        "import os, subprocess, sys;"
        f"arguments = [str(os.getpid())] if {named} else [];"
        f"command = [sys.executable, '-c', {GUARDED!r}, *arguments];"
        "sys.exit(subprocess.Popen(command).wait() != -9)"
    )
    with subprocess.Popen([sys.executable, "-c", starts], stderr=subprocess.PIPE) as parent:
        try:
            ended = parent.wait(guardian.GRACE_S + 2) == 0
        except subprocess.TimeoutExpired:
            ended = False
            parent.kill()
        said = parent.stderr.read().decode()
    assert ended != named
    assert "Triton has gone" in said
