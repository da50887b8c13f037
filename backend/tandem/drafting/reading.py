"""What a model has to read before it can draft: what was written since it drafted last.

Where lookups and the model draft in turns, it reads again and again what came of the lookups'
drafts, and what is written until the next time has to bear that.
"""

from __future__ import annotations

from tandem.drafting import Proposer
from tandem.drafting.between import averaged
from tandem.drafting.costs import READ_ALONG, RoundCosts
from tandem.drafting.remembered import Known
from tandem.request import Request

NEVER = -1.0  # the time in which a head catches up that has lost what it would have to read
STAYS_MEMORY = 0.9  # of how much a model writes between two times of catching up; that counts...
FORGOTTEN_BY = 256  # ... for half as much in so many rounds without another one, ...
MOST_FORGOTTEN = 32.0  # ... and for next to nothing in so many times as many


class Reading:
    """By one model, or none."""

    def __init__(self, proposer: Proposer | None) -> None:
        self._reads_all = proposer is not None and proposer.reads_all
        self._stay: float | None = None
        """Tokens that requests write in rounds with the model's drafts until it has to catch up
        again, as it was in..."""
        self._seen = 0
        """... this round."""

    def unread(self, request: Request) -> int:
        """Tokens that the model has to read before it can draft."""
        return request.computed - request.draft_computed if self._reads_all else 0

    def caught_up(self, known: Known, now: int, asking: bool) -> None:
        """In the round `now` it reads more of a request's text than it does in passing. asking:
        whether lookups were asked: otherwise it says nothing of rounds in which they are."""
        if asking and known.stay:
            self._stay, self._seen = averaged(self._stay, known.stay, STAYS_MEMORY), now
        known.stay = 0

    def seconds(self, request: Request, costs: RoundCosts) -> float:
        """In which it catches up; NEVER: it cannot."""
        if request.states_lost:
            return NEVER
        unread = self.unread(request)
        return 0.0 if unread <= READ_ALONG else costs.reading(unread)

    def bearing(self, known: Known, to_write: float, now: int) -> float:
        """Tokens that bear this in the round `now`, in which lookups are asked: those until it has
        to catch up again, of the ones to come."""
        if self._stay is None or not known.drafted:
            return to_write
        forgotten = 2.0 ** min((now - self._seen) / FORGOTTEN_BY, MOST_FORGOTTEN)
        return min(to_write, self._stay * forgotten)
