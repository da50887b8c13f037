"""Rounds without the drafts that are planned: what rounds take without them must stay known."""

from __future__ import annotations

CLOSE = 1.3  # times the rate of plain decoding, and less
FIRST_REST = 7  # rounds before the first rest: what was known before the drafts may be old
REST_EVERY = 92  # rounds, later; then, with its own, no rest stands at the same place of a plan
LONGEST_REST = 8  # rounds


class Rests:
    """They come where drafts promise little more than none do: soon after drafting has begun, and
    then ever more seldom. Each goes on until one of its rounds has shown what rounds without drafts
    take: the first one finds what the last draft has left in the caches, and those in which
    requests come or go show nothing."""

    def __init__(self) -> None:
        self._at, self._every = FIRST_REST, FIRST_REST
        """When the next rest may begin, and how many rounds come before the one behind it."""
        self._until = 0
        """The round in which the present rest ends at the latest; 0: there is none."""
        self._last_planned = 0
        """The last round for which a draft was planned."""

    def due(self, now: int, promised: float) -> bool:
        """Whether the round `now` is of one, for which drafts are planned that promise so many
        times the rate of none."""
        if now > self._last_planned + FIRST_REST:  # drafting begins anew
            self._at, self._every, self._until = now + FIRST_REST, FIRST_REST, 0
        self._last_planned = now
        if not self._until and promised < CLOSE and now >= self._at:
            self._until = now + LONGEST_REST
        if now >= self._until > 0:
            self.shown(now)
        return self._until > 0

    def shown(self, now: int) -> None:
        """The round `now` has shown what rounds without drafts take."""
        if self._until:
            self._every = min(2 * self._every, REST_EVERY)
            self._at, self._until = now + self._every, 0
