"""Rounds without the drafts that are planned: what rounds take without them must stay known."""

from __future__ import annotations

CLOSE = 1.3  # times the rate of plain decoding, and less
FIRST_REST = 7  # rounds before the first rest: what was known before the drafts may be old
REST_EVERY = 92  # rounds, later; then, with its own, no rest stands at the same place of a plan


class Rests:
    """They come where drafts promise little more than none do: soon after drafting has begun, and
    then ever more seldom. Each has two rounds: the first pass behind a draft finds what that has
    left in the caches."""

    def __init__(self) -> None:
        self._at, self._every = FIRST_REST, FIRST_REST
        """When the next rest may begin, and how many rounds come before the one behind it."""
        self._rested = 0
        """The last round of a rest."""
        self._last_planned = 0
        """The last round for which a draft was planned."""

    def due(self, now: int, promised: float) -> bool:
        """Whether the round `now` is of one, for which drafts are planned that promise so many
        times the rate of none."""
        if now > self._last_planned + FIRST_REST:  # drafting begins anew
            self._at, self._every = now + FIRST_REST, FIRST_REST
        self._last_planned = now
        if promised >= CLOSE or now < self._at:
            return False
        if self._rested == now - 1:  # its second round
            self._every = min(2 * self._every, REST_EVERY)
            self._at = now + self._every
        self._rested = now
        return True
