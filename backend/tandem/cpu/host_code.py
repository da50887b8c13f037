"""The Python code that runs between passes is fetched at the end of each.

A pass reads so many weights that the processor's caches forget all else, and from then on nearly
each line of Python waits for memory. Which functions run is seen by watching some steps now and
then; CPython keeps their code at the address that `id` gives, and the kernels ask for all of it at
once, which takes some microseconds, where one line after the other would take tens.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol

FIRST = 32  # step at which the first watch begins, and...
LONG = 4  # ... steps that each goes on: watched ones take longer
OFTEN = 29  # steps behind it to the next, until...
KNOWN = 8  # ... there were so many, and then...
SELDOM = 1000  # ... so many
RECENT = 4  # last watches, of which...
SHARE = 0.5  # ... so many must have seen a function for it to be fetched
MOST_EVENTS = 100_000  # that a watch sees: whoever steps may do much else in between
MOST_BYTES = 512 << 10  # that are fetched, or one function more: half of a second cache


class Fetching(Protocol):
    """Kernels."""

    def want(self, stretches: Sequence[tuple[int, int]]) -> None:
        """As `KernelStack.want`."""
        ...


class _Seen(NamedTuple):
    """A function's code."""

    code: CodeType
    watches: int
    """A bit for each of the last ones, set if it was seen; the latest is the lowest."""

    @property
    def often(self) -> tuple[int, int]:
        """The larger, the more of them have seen it, and the later."""
        latest_first = f"{self.watches:0{RECENT}b}"[::-1]
        return self.watches.bit_count(), int(latest_first, 2)

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """Addresses and bytes of what running it reads."""
        parts = self.code, self.code.co_consts, self.code.co_names
        return [(id(part), part.__sizeof__()) for part in parts]


class HostCode:
    """Watches steps, and tells the kernels what to fetch. It holds nothing of a model: what watches
    a thread may outlive the engine."""

    def __init__(self) -> None:
        self.due = FIRST
        """The step at whose beginning `turn` is to be called."""
        self._seen: dict[int, _Seen] = {}
        """By address: codes are compared by all that is in them."""
        self._seeing: dict[int, CodeType] = {}
        """In the watch under way."""
        self._watches = 0
        self._watching = False
        self._left = 0
        """Events until the watch under way sees no more."""

    def turn(self, step: int, kernels: Fetching) -> None:
        """Begins to watch, or ends that. Where somebody else has a hook in this thread, it
        is not watched."""
        if self._watching:
            self.stop()
            self._tell(kernels)
            self.due = step + (OFTEN if self._watches < KNOWN else SELDOM)
        elif sys.getprofile() is None:
            self._watching, self._left, self.due = True, MOST_EVENTS, step + LONG
            sys.setprofile(self._see)
        else:
            self.due = step + OFTEN

    def stop(self) -> None:
        """Nothing is watched any more."""
        self._watching, self._left = False, 0
        if sys.getprofile() == self._see:
            sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._seeing[id(frame.f_code)] = frame.f_code
        self._left -= 1
        if self._left <= 0:  # or it was stopped in another thread
            sys.setprofile(None)

    def _tell(self, kernels: Fetching) -> None:
        self._watches += 1
        unseen = ((1 << RECENT) - 1) & ~1
        seen = {
            at: _Seen(one.code, one.watches << 1 & unseen)
            for at, one in self._seen.items()
            if one.watches << 1 & unseen
        }
        for at, code in self._seeing.items():
            seen[at] = _Seen(code, 1 | (seen[at].watches if at in seen else 0))
        self._seen, self._seeing = seen, {}
        kernels.want(self._stretches())

    def _stretches(self) -> list[tuple[int, int]]:
        """Of those that run often, as many as there is room for: what runs seldom would have its
        place in the caches, and take its time, at the end of each pass."""
        enough = min(self._watches, RECENT) * SHARE
        wanted = [one for one in self._seen.values() if one.watches.bit_count() >= enough]
        stretches: list[tuple[int, int]] = []
        left = MOST_BYTES
        for one in sorted(wanted, key=lambda one: one.often, reverse=True):
            stretches += one.stretches
            left -= sum([size for _, size in one.stretches])
            if left < 0:
                break
        return stretches
