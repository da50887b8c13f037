"""What a model has to read before it can draft: what was written since it drafted last.

Where lookups and the model draft in turns, it reads again and again what came of the lookups'
drafts, and what it then writes has to bear that. Tokens: of a request; seconds are the costs'.
"""

from __future__ import annotations

from tandem.drafting import Proposer
from tandem.drafting.between import averaged
from tandem.drafting.costs import READ_ALONG, RoundCosts
from tandem.drafting.remembered import Known, about
from tandem.request import Request

NEVER = -1.0  # the time in which a head catches up that has lost what it would have to read
STAYS_MEMORY = 0.9  # of how much a model writes between two times of catching up


class Reading:
    """By one model, or none."""

    def __init__(self, proposer: Proposer | None) -> None:
        self._reads_all = proposer is not None and proposer.reads_all
        self._stay: float | None = None
        """Tokens that requests write in rounds with the model's drafts until it has to catch up
        again."""

    def unread(self, request: Request) -> int:
        """Tokens that the model has to read before it can draft."""
        return request.computed - request.draft_computed if self._reads_all else 0

    def caught_up(self, known: Known) -> None:
        """It reads more than it does in passing."""
        if known.gains[-1]:
            self._stay = averaged(self._stay, max(1, known.stay), STAYS_MEMORY)
        known.stay = 0

    def a_token(self, request: Request, known: Known, to_write: float, costs: RoundCosts) -> float:
        """Seconds in which it catches up, for each token that bears them: at first all that are to
        come, `to_write`, then those until it has to again; or NEVER."""
        if request.states_lost:
            return NEVER
        unread = self.unread(request)
        if unread <= READ_ALONG:
            return 0.0
        tokens = to_write
        if known.gains[-1] and self._stay is not None:
            tokens = min(tokens, self._stay)
        seconds = costs.reading(unread)
        return seconds and about(seconds / tokens)
