"""Whether the target's hidden states are kept for a head that is not expected to draft.

Keeping them takes time in every pass: layers' inputs are copied, no prompt ends at the last layer's
keys and values, a head reads prompts that others may share. Where none of its drafts pays, it is
all for nothing. So behind a while without any none are kept. A head that reads all of a text does
not draft any more where some states are lost; it may for requests that come later, when states are
kept again: as soon as there are fewer requests, and now and then for some that come, to see whether
its drafts pay by now.
"""

from __future__ import annotations

from collections.abc import Callable

from tandem.drafting.remembered import alike

KEPT_FOR = 128  # rounds by which it is judged whether the head pays; then no states are kept...
FIRST_SPARED = 512  # ... for so many rounds, ...
LONGEST_SPARED = 4096  # ... and ever more
KEEPING = 0.1  # of the time, that it takes to keep states: as much must drafts save


class Sparing:
    """Of one head."""

    def __init__(self, may_spare: bool, reads_all: bool = True) -> None:
        """may_spare: whether states may be lost at all; reads_all: as in `Proposer`."""
        self._may_spare, self._reads_all = may_spare, reads_all
        self.spares = False
        """Whether no states are kept."""
        self._since = 0
        """The round from which on is judged, and..."""
        self._saved = 0.0
        """... shares of the time that drafts have saved since, summed over rounds."""
        self._until = 0
        """The round from which on states are kept again when somebody comes for whom all are there,
        as they are for any request of a head that looks at a text's end, ..."""
        self._batch = 0
        """... as none were kept for so many requests."""
        self._rounds = FIRST_SPARED
        """Of the next time in which none are."""

    def drafted(self, saved: float) -> None:
        """In a round by the head, which should save so much of its time."""
        self._saved += saved

    def look(self, now: int, running: int, waiting: int, pays: Callable[[], bool]) -> None:
        """Before the round `now`, with so many requests. pays: whether the head's drafts should,
        for a request of which nothing is known, save enough beside what others do."""
        batch = running + waiting
        if self.spares:
            fewer = batch < self._batch and not alike(batch, self._batch)
            if fewer or (now >= self._until and (waiting or not self._reads_all)):
                self._begin(now)
        elif self._may_spare and now - self._since >= KEPT_FOR and running:
            saves = self._saved >= KEEPING * (now - self._since)
            if saves:
                self._rounds = FIRST_SPARED
            if saves or pays():
                self._begin(now)
            else:
                self.spares, self._batch, self._until = True, batch, now + self._rounds
                self._rounds = min(2 * self._rounds, LONGEST_SPARED)

    def _begin(self, now: int) -> None:
        """From the round `now` on it is judged anew."""
        self.spares, self._since, self._saved = False, now, 0.0
