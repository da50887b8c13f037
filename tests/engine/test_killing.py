"""Processes that do not end by themselves, and what they leave behind."""

import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import psutil
import pytest

from tandem.killing import end_all, lives
from tests.engine.sinks import until

SHARES = """
import os, signal, time
from multiprocessing.shared_memory import SharedMemory
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, lambda *_: os.fork())
print(SharedMemory(create=True, size=4096).name, flush=True)
while True:
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


def kill(processes):
    end_all(lambda: [one for one in processes if lives(one)], grace=0)


def test_what_killed_processes_had_in_shared_memory_is_taken_away(sharer):
    processes, region = sharer
    assert len(processes) == 2
    assert region.exists()
    kill([*reversed(processes)])
    assert not region.exists()
    assert not any(map(lives, processes))


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
    assert not lives(tracker)


def test_who_has_ended_meanwhile_is_no_trouble(sharer):
    processes, _ = sharer
    kill(processes)
    kill(processes)
    assert not any(map(lives, processes))


def test_what_is_started_while_others_are_killed_goes_before_the_tracker(sharer):
    """Which it would keep from ending."""
    (process, tracker), region = sharer
    process.send_signal(signal.SIGUSR1)
    until(lambda: len(process.children()) == 2)
    [late] = [one for one in process.children() if one != tracker]
    looks = count()

    def find():
        known = [process, tracker, late] if next(looks) > 1 else [process, tracker]
        return [one for one in known if lives(one)]

    end_all(find, grace=0)
    assert not lives(late)
    assert not region.exists()
