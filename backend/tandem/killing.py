"""The end of processes that do not end by themselves."""

from __future__ import annotations

import ctypes
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

GRACE_S = 5.0  # for what ends behind the others
LOOK_S = 0.05
LOOKS = 5  # for what has been started while others were ended
FAMILY = "TANDEM_FAMILY"
"""In the environment of an engine's process, and of all that it starts: which model's it is."""
BEGINS_S = 1.0  # for a process that has just been started to say what it is


_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Has the kernel kill this process when the one that started it ends, even if it is stopped."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def marked(variable: str, value: str) -> list[psutil.Process]:
    """The living processes that have this in their environment. It survives what a parent-child
    tree does not: a killed parent, a new session."""
    return [one for one in psutil.process_iter() if _variable(one, variable) == value]


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except (psutil.Error, OSError):
        return None  # another user's, or gone meanwhile


def end_all(find: Callable[[], list[psutil.Process]], grace: float) -> None:
    """Waits up to `grace` seconds for the living processes that `find` finds to end, then kills
    them, and waits for their end, not for ever. Those that are stopped go on, to end."""
    limit = time.monotonic() + grace
    while (left := find()) and time.monotonic() < limit:
        for process in left:
            with suppress(psutil.Error):
                process.resume()
        time.sleep(LOOK_S)
    if left:
        _kill_all(find)


def _kill_all(find: Callable[[], list[psutil.Process]]) -> None:
    """Python's resource trackers come last: behind all others they end by themselves, having taken
    what these have left in shared memory."""
    for _ in range(LOOKS):
        others = [process for process in find() if not _is_tracker(process)]
        if not others:
            break
        _kill(others)
    _kill(_left_of(find(), GRACE_S))


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _left_of(processes, GRACE_S)


def _left_of(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that have not ended after so many seconds. A zombie has: whoever should look after it
    may do so late, or never."""
    limit = time.monotonic() + seconds
    while (left := [one for one in processes if lives(one)]) and time.monotonic() < limit:
        time.sleep(0.01)
    return left


def lives(process: psutil.Process) -> bool:
    """Whether it still does or holds something, which a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _is_tracker(process: psutil.Process) -> bool:
    limit = time.monotonic() + BEGINS_S
    try:
        while not (words := process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > limit:
                break
            time.sleep(0.01)
    except psutil.Error:
        return False  # it has ended
    return any("multiprocessing.resource_tracker" in word for word in words)
