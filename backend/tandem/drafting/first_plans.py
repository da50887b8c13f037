"""Plans for lone requests of which nothing is known: what one of them is drafted for holds for the
next ones, for that takes a fraction of the time in which it is worked out."""

from __future__ import annotations

from typing import NamedTuple

from tandem.drafting.agenda import Agenda
from tandem.drafting.asking import NO_ASKS
from tandem.drafting.remembered import LONGER, Known
from tandem.scheduler import Decode

# Rounds for which they hold: so many at first, and up to...
FIRST_FOR, MOST_FIRST_FOR = 32, 512

Likeness = tuple[float, ...]
"""What they go by: requests that have the same in all of this are planned for alike."""


class _FirstPlan(NamedTuple):
    agenda: Agenda
    """Of nobody."""
    wish: int
    """As in `Known`, and..."""
    taken: int
    """... this too."""


class FirstPlans:
    """In which a model drafts."""

    def __init__(self) -> None:
        self._plans: dict[Likeness, _FirstPlan] = {}
        self._until, self._lasts = 0, FIRST_FOR
        """The round up to which they hold, and for how many the next ones will."""

    def of(self, like: Likeness, one: Decode, known: Known, now: int) -> Agenda | None:
        """For a request, from the round `now` on; None: there is none for any that is like it."""
        if now >= self._until:
            self._plans, self._until = {}, now + self._lasts
            self._lasts = min(LONGER * self._lasts, MOST_FIRST_FOR)
        plan = self._plans.get(like)
        if plan is None:
            return None
        known.room, known.wish, known.taken = one.lookahead, plan.wish, plan.taken
        known.until = now  # its next plan is its own
        until = now + plan.agenda.until - plan.agenda.made
        mine = plan.agenda._replace(decodes=[one], requests=[known], made=now, until=until)
        return mine.asking()

    def keep(self, like: Likeness, agenda: Agenda) -> None:
        """For those to come; nothing is kept of the request that it was made for."""
        (known,) = agenda.requests
        of_nobody = agenda._replace(decodes=[], requests=[], asks=NO_ASKS)
        self._plans[like] = _FirstPlan(of_nobody, known.wish, known.taken)

    def forget(self) -> None:
        """One was made anew, in which nothing is drafted: that may not pay for others either."""
        self._plans, self._lasts = {}, FIRST_FOR
