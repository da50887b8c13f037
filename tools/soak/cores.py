"""Which cores the server has, and which its clients."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def cores_apart() -> tuple[set[int], set[int]]:
    """Those of the server, and the last one for its clients; of a single core both."""
    *others, last = sorted(os.sched_getaffinity(0))
    return set(others) or {last}, {last}


@contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """Within, this thread, and what it starts, runs on these cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
