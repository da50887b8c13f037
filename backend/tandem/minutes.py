"""Speculation in the log: a line for each minute in which something was generated."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from tandem.metrics import (
    ACCEPTED_TOKENS,
    DRAFT_POSITIONS,
    FINISHED,
    GENERATED_TOKENS,
    ROUNDS,
    Key,
)

logger = logging.getLogger("tandem")

MINUTE_S = 60.0
LITTLE = 0.4  # of the places that drafts reach is kept: as the alert for Prometheus has it, ...
ENOUGH = 10.0  # ... where so many a second are reached


class Minutes:
    """Adds up what is counted, and says it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._counts = defaultdict[str, float](float)

    def take(self, counts: Mapping[Key, float]) -> None:
        """More of it, or nothing, now."""
        for key, count in counts.items():
            self._counts[key.name] += count
        seconds = self._clock() - self._began
        if seconds < MINUTE_S:
            return
        if self._counts[GENERATED_TOKENS]:
            self._say(self._counts, seconds)
        self._counts = defaultdict(float)
        self._began = self._clock()

    @staticmethod
    def _say(counts: Mapping[str, float], seconds: float) -> None:
        line = (
            f"In {seconds:.0f} s {counts[FINISHED]:.0f} requests ended, and "
            f"{counts[GENERATED_TOKENS]:.0f} tokens were generated"
        )
        rounds, reached, kept = (
            counts[name] for name in (ROUNDS, DRAFT_POSITIONS, ACCEPTED_TOKENS)
        )
        if not reached:
            logger.info("%s, without drafts.", line)
            return
        line += (
            f": {1 + kept / rounds:.2f} a pass of the target, "
            f"of at most {1 + reached / rounds:.2f}; drafts were kept to {kept / reached:.0%}."
        )
        if kept < LITTLE * reached and reached > ENOUGH * seconds:
            remedy = "Lower num_speculative_tokens, or take another draft or method."
            logger.warning("%s That is little. %s", line, remedy)
        else:
            logger.info("%s", line)
