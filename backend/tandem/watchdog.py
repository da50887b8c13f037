"""Tells a hung step from a long one."""

from __future__ import annotations

from typing import Protocol

from tandem.runners.rank_worker import PULSE_S


class Stepping(Protocol):
    """What makes steps."""

    @property
    def steps(self) -> int:
        """How many have ended."""
        ...

    @property
    def idle(self) -> bool:
        """There is nothing to make one for."""
        ...


class Watchdog:
    """Looks at an engine once a pulse, from a thread of its own."""

    def __init__(self, engine: Stepping, timeout: float) -> None:
        """timeout: seconds that a step may take."""
        self._engine = engine
        self._timeout = timeout
        self._seen = engine.steps
        self._pulses = 0  # not the clock: a process that was stopped is not hung

    def hung(self) -> bool:
        """Whether no step has ended for too long though there is work."""
        steps = self._engine.steps
        if self._engine.idle or steps != self._seen:
            self._seen, self._pulses = steps, 0
        else:
            self._pulses += 1
        return self._pulses * PULSE_S > self._timeout

    @property
    def reason(self) -> str:
        """Why the engine ends."""
        return f"A step has not ended within the {self._timeout:g} s that step_timeout allows."
