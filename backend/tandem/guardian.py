"""Ends what Triton has left behind: a model's process, its engine, and what that has started.

Triton 2.51 that is killed, or ends with a crash, leaves every other of its models' processes (its
*stubs*) running, and with it an engine and all its memory: the stub waits without an end for an
answer about a metric, with Python's lock held, and the thread that should end it waits for a lock
too. And vLLM's processes that have not started yet do not notice that whoever started them has
gone. So this is a process of its own, which outlives them all. It imports little, for it waits as
long as the model serves.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

GRACE_S = 2.0
"""A stub that notices by itself that Triton has gone ends within a second, and an engine too."""
FAMILY = "TANDEM_FAMILY"
"""In the environment of all that a stub starts, however deep."""
SHARED = re.compile(r"/dev/shm/\S+$", re.MULTILINE)


def watched() -> subprocess.Popen[bytes]:
    """Starts watching this process, which is to end with its parent, and what it starts later."""
    parent = os.getppid()
    # Triton names itself among a stub's arguments: if another is the parent, Triton has gone
    arguments = Path("/proc/self/cmdline").read_text().split("\0")
    triton = parent if str(parent) in arguments else 0
    family = uuid.uuid4().hex
    guardian = subprocess.Popen(
        # Of the running environment; inside Triton's stub, sys.executable is not one.
        [
            Path(sys.prefix) / "bin" / "python3",
            "-P",
            __file__,
            *map(str, (triton, os.getpid())),
            family,
        ],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # what a terminal sends is for others
    )
    os.environ[FAMILY] = family
    return guardian


def watch(triton: int, stub: int) -> None:
    """Returns when the stub has ended. triton: 0 where it has gone."""
    with suppress(ProcessLookupError):
        ended = os.pidfd_open(stub)
        if triton:
            _wait_for_either(triton, ended)
        if not select.select([ended], [], [], GRACE_S)[0]:
            _end(stub, ended)


def _wait_for_either(triton: int, ended: int) -> None:
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(triton), ended], [], [])


def _end(stub: int, ended: int) -> None:
    """With what it shared with Triton, which nobody else is left to remove."""
    print(f"tandem: Triton has gone: its process {stub} is ended.", file=sys.stderr)
    shared = SHARED.findall(Path(f"/proc/{stub}/maps").read_text())
    signal.pidfd_send_signal(ended, signal.SIGKILL)
    for name in shared:
        Path(name).unlink(missing_ok=True)


def end_family(name: str) -> None:
    """What a stub has left: most of it ends by itself."""
    _, stubborn = psutil.wait_procs([*_family(name)], GRACE_S)
    while stubborn:
        from tandem.killing import kill  # by whom it is needed only here

        kill(stubborn)
        stubborn = [*_family(name)]  # which may have started others


def _family(name: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # another user's, or gone meanwhile
            if process.environ().get(FAMILY) == name:
                yield process


if __name__ == "__main__":
    watch(*map(int, sys.argv[1:3]))
    end_family(sys.argv[3])
