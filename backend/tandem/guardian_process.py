"""Ends what Triton has left behind: a model's process, its engines, and what those have started.

Triton 2.51 that is killed, or ends with a crash, leaves every other of its models' processes (its
*stubs*) running, and with it an engine and all its memory: the stub waits without an end for an
answer about a metric, with Python's lock held, and the thread that should end it waits for a lock
too. And vLLM's processes that have not started yet do not notice that whoever started them has
gone. So this is a process of its own, which outlives them all. It imports next to nothing, for it
waits as long as the model serves.
"""

from __future__ import annotations

import select
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

GRACE_S = 2.0
"""A stub that notices by itself that Triton has gone ends within a second."""
FAMILY_GRACE_S = 5.0
"""vLLM's processes clear away what they have in shared memory, if they are given the time."""


def watch(triton: int, stub: int, region: Path, family: Path) -> None:
    """Returns when all have ended. triton, stub: descriptors that can be read when they have."""
    select.select([triton, stub], [], [])
    gone = bool(select.select([triton], [], [], 0)[0])
    try:
        if gone:
            _end(stub, region)
    finally:
        _end_family(family)


def _end(stub: int, region: Path) -> None:
    """With what it shared with Triton, which nobody else is left to remove."""
    late = not select.select([stub], [], [], GRACE_S)[0]
    if late:
        with suppress(ProcessLookupError):  # it has ended just now
            signal.pidfd_send_signal(stub, signal.SIGKILL)
    with suppress(OSError):
        region.unlink()
    if late:
        with suppress(OSError):  # who reads this may have gone too
            print("tandem: Triton has gone: a model's process is ended behind it.", file=sys.stderr)


def _end_family(family: Path) -> None:
    from tandem.killing import FAMILY, end_all, marked  # not before: what these import is large
    from tandem.leftovers import clear_shared

    end_all(lambda: marked(FAMILY, str(family)), FAMILY_GRACE_S)
    clear_shared(family)
    shutil.rmtree(family, ignore_errors=True)


if __name__ == "__main__":
    _triton, _stub, _region, _family = sys.argv[1:]
    watch(int(_triton), int(_stub), Path("/dev/shm", _region), Path(_family))
