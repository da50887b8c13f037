"""Memory, processes and shared memory of a server over a long run."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import psutil

from tandem import guardian_process
from tandem.serving import TritonServer
from tandem.serving.processes import members
from tools.soak.shared_memory import SharedMemory, size

MIB = 1 << 20
PAUSE_S = 1.0
NOISE_MIB = 6.0  # growth that allocators explain, by traffic, ...
NOISE_SHARE = 0.02
ONCE_MIB = 32.0  # that a step may take which is larger than any before, ...
OF_LOADS_MIB = 2.0  # ... and in Triton by loads and unloads
MODULES = {
    "tandem.engine_main": "engine",
    "tandem.cli": "front",
    "tandem.runners.rank_worker": "rank",
    guardian_process.__file__: "guardian",
}


class Sample(NamedTuple):
    """A process at a moment."""

    seconds: float
    """Since the watch began."""
    mib: float
    """Resident."""


class Footprint(NamedTuple):
    """What a server occupies beside memory."""

    processes: int
    regions: int
    """Entries in /dev/shm, whatever their names."""
    region_mib: float


def footprint(server: TritonServer, shared: SharedMemory) -> Footprint:
    """Of a server, now. shared: made before it started."""
    sizes = [size(path) for path in shared.entries(server.identity)]
    return Footprint(len(members(server.identity)), len(sizes), sum(sizes) / MIB)


def role(process: psutil.Process) -> str:
    """What a process of a server is."""
    command = process.cmdline()
    named = [name for module, name in MODULES.items() if module in command]
    return named[0] if named else Path(command[0]).name if command else "ended"


def engines_of(server: TritonServer) -> set[int]:
    """Ids of the engines' processes: behind a reload there are two for a moment."""
    found = set()
    for one in psutil.Process(server.pid).children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            found |= {one.pid} if role(one) == "engine" else set()
    return found


def parts_of_engine(server: TritonServer) -> list[psutil.Process]:
    """Its process, and those that it started: ranks, or vLLM's."""
    below = psutil.Process(server.pid).children(recursive=True)
    [engine] = [one for one in below if role(one) == "engine"]
    started = engine.children(recursive=True)
    return [engine, *(one for one in started if "resource_tracker" not in " ".join(one.cmdline()))]


class Watch:
    """Samples processes, and all that these have started, while it is open."""

    def __init__(self, roots: Sequence[int | None]) -> None:
        self.samples: dict[str, list[Sample]] = {}
        """By what the process is, and its id."""
        self._roots = [psutil.Process(pid) for pid in roots]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(PAUSE_S):
            for process in self._processes():
                try:
                    name = f"{role(process)} ({process.pid})"
                    mib = process.memory_info().rss / MIB
                except psutil.Error:
                    continue  # it has just ended
                sample = Sample(time.monotonic() - self._began, mib)
                self.samples.setdefault(name, []).append(sample)

    def _processes(self) -> Iterator[psutil.Process]:
        for root in self._roots:
            yield root
            with suppress(psutil.Error):  # it has just ended
                yield from root.children(recursive=True)


class Trend(NamedTuple):
    """A process's memory over the second half of a run."""

    mean_mib: float
    growth_mib: float
    """By the slope of a straight line."""

    def is_flat(self, noise_mib: float = NOISE_MIB, share: float = NOISE_SHARE) -> bool:
        """Whether it is no more than allocators explain: so much, and a share of all."""
        return self.growth_mib <= noise_mib + share * self.mean_mib


def trend(samples: Sequence[Sample], once_mib: float = 0.0) -> Trend:
    """Of two samples or more. once_mib: so much may be taken at one moment, and is not counted:
    buffers grow once to what the largest step needs, and when that comes is for the load to say."""
    half = samples[len(samples) // 2 :] if len(samples) > 3 else samples
    seconds, mib = [one.seconds for one in half], [one.mib for one in half]
    rises = [after - before for before, after in pairwise(mib)]
    at = rises.index(max(rises)) + 1
    taken = min(once_mib, max(0.0, rises[at - 1]))
    mib[at:] = [one - taken for one in mib[at:]]
    slope = statistics.linear_regression(seconds, mib).slope
    return Trend(statistics.fmean(mib), slope * (seconds[-1] - seconds[0]))
