"""The lookups of a mixture at work: whether they are asked, and what they find."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.drafting.choosing import Method
from tandem.drafting.parts import NOTHING, part_of
from tandem.drafting.remembered import Known
from tandem.drafting.resting import Pauses
from tandem.scheduler import Decode


class Lookups:
    """All are asked, or none."""

    def __init__(self, methods: Sequence[Method]) -> None:
        """methods: there may be none."""
        self.methods = methods
        self.pauses = Pauses()
        self.asked = False
        """Whether they are in the round under way, and..."""
        self.took = 0.0
        """... seconds that it took, and to plan with what they found."""
        self.nothing = [NOTHING] * len(methods)
        """What is found where they are not asked."""

    def begin(self, now: int, decodes: Sequence[Decode]) -> None:
        """The round `now`, in which they are asked unless there is no room for any draft, or they
        pause."""
        self.asked, self.took = False, 0.0
        if self.methods and (decodes[0].lookahead or any(one.lookahead for one in decodes)):
            first = decodes[0].request.id
            self.asked = not self.pauses.due(now, len(decodes), first)

    def silent_until(self, until: int) -> int:
        """The round before which they are not asked, at most `until`."""
        return min(until, self.pauses.until) if self.methods else until

    def find(self, decodes: Sequence[Decode], requests: Sequence[Known]) -> None:
        """Asks every one."""
        drafts = [method.proposer.propose(decodes) for method in self.methods]
        for index, known in enumerate(requests):
            known.found = [part_of(draft, index) for draft in drafts]

    def end(self, now: int, decodes: Sequence[Decode], saves: float, took: float) -> None:
        """They have been, which took so many seconds. saves: seconds of the round `now` that what
        is planned should save."""
        self.took = took
        self.pauses.asked(now, len(decodes), decodes[0].request.id, saves, took)
