"""Processes that do not end by themselves, and what they leave behind."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tandem.killing import kill

SHARES = """
import signal, time
from multiprocessing.shared_memory import SharedMemory
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(SharedMemory(create=True, size=4096).name, flush=True)
time.sleep(600)
"""


@pytest.fixture
def sharer():
    """A process that will not end, its resource tracker, and its shared memory."""
    with subprocess.Popen([sys.executable, "-c", SHARES], stdout=subprocess.PIPE) as process:
        region = Path("/dev/shm") / process.stdout.readline().decode().strip()
        processes = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
        yield processes, region
        process.kill()
        region.unlink(missing_ok=True)


def test_what_killed_processes_had_in_shared_memory_is_taken_away(sharer):
    processes, region = sharer
    assert len(processes) == 2
    assert region.exists()
    kill([*reversed(processes)])
    assert not region.exists()
    assert not any(
        process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes
    )


def test_a_tracker_that_has_just_begun_is_told_from_others(sharer, monkeypatch):
    """For a moment a new process has no command line."""
    processes, region = sharer
    words, asked = psutil.Process.cmdline, []

    def cmdline(process):
        asked.append(process.pid)
        return words(process) if asked.count(process.pid) > 2 else []

    monkeypatch.setattr(psutil.Process, "cmdline", cmdline)
    kill(processes)
    assert not region.exists()


def test_a_tracker_that_does_not_end_is_killed_too(sharer, monkeypatch):
    (process, tracker), _ = sharer
    tracker.suspend()
    monkeypatch.setattr("tandem.killing.GRACE_S", 0.2)
    kill([process, tracker])
    assert not tracker.is_running() or tracker.status() == psutil.STATUS_ZOMBIE


def test_who_has_ended_meanwhile_is_no_trouble(sharer):
    processes, _ = sharer
    kill(processes)
    kill(processes)
