"""Notices that this process stood still: its machine was paused, or others had the processors."""

from __future__ import annotations

import threading
import time
from typing import Final, Self

SAID: Final = "its process did not run for"
"""In the log of a load that failed because of one."""
TICK_S = 0.05
BUSY = 0.5
"""Share of a gap: of what ran for more of it another thread held this one."""


class Standstill:
    """While it is open, the longest time in which nothing ran."""

    def __init__(self) -> None:
        self.longest = 0.0
        """Seconds."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        before = _clocks()
        while not self._over.wait(TICK_S):
            now = _clocks()
            wall, steady, busy = (b - a for a, b in zip(before, now, strict=True))
            # a machine that is paused knows it by the first clock, a process by both
            gap, before = max(wall, steady), now
            if busy < BUSY * gap:
                self.longest = max(self.longest, gap)


def _clocks() -> tuple[float, float, float]:
    """Of the wall, of the machine, and of this process's work."""
    return time.time(), time.monotonic(), time.process_time()
