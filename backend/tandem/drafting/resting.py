"""Rounds without drafts, which must stay known; rounds that need not be timed; and where lookups do
not bring what it takes to ask them, pauses."""

from __future__ import annotations

from tandem.drafting.between import OUTLIER, averaged
from tandem.drafting.remembered import alike

CLOSE = 1.3  # times the rate of plain decoding, and less: otherwise the next rest is put off...
PUT_OFF = 500  # ... by so many rounds, as it costs more, and is needed less
FIRST_REST = 7  # rounds before the first rest: what was known before the drafts may be old
REST_EVERY = 92  # rounds, later; then, with its own, no rest stands at the same place of a plan
LONGEST_REST = 8  # rounds
LEARNT_FOR = 8  # rounds in which lookups are asked before it is judged whether they pay, and...
JUDGED_FOR = 8  # ... rounds by which it is, of which...
KEPT = 0.5  # ... so much counts in the next judgement too; where they do not, they pause...
FIRST_PAUSE = 16  # ... for so many at first, ...
LONGEST_PAUSE = 128  # ... and ever longer
AWAKE = 1  # round that shows what such rounds take, and then...
NAP = 6  # ... so many that are not, and, where nothing changes, ...
LONGEST_NAP = 24  # ... ever more, ...
LONGEST_IDLE = 192  # ... where nothing is drafted far more, whoever of few comes or goes


class Rests:
    """They come soon after drafting has begun, and then ever more seldom, most of all where drafts
    promise far more than none do. (But they come: that may rest on what passes took long ago.) Each
    goes on until one of its rounds has shown what rounds without drafts
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
        put_off = 0 if promised < CLOSE else PUT_OFF
        if not self._until and now >= self._at + put_off:
            self._until = now + LONGEST_REST
        if now >= self._until > 0:
            self.shown(now)
        return self._until > 0

    def none_before(self, until: int, promised: float) -> int:
        """The round, at most `until`, before which none begins, so that it need not be asked.
        promised: as in `due`."""
        until = min(until, self._at + (0 if promised < CLOSE else PUT_OFF))
        self._last_planned = max(self._last_planned, until - 1)
        return until

    def broken_off(self, now: int) -> None:
        """Behind the round `now` others come than were planned."""
        self._last_planned = min(self._last_planned, now)

    def shown(self, now: int) -> None:
        """The round `now` has shown what rounds without drafts take."""
        if self._until:
            self._every = min(2 * self._every, REST_EVERY)
            self._at, self._until = now + self._every, 0


class Naps:
    """Of the rounds in which what is drafted is planned already, or nothing is, or lookups alone
    draft, most are not timed: behind a pass each line is slow."""

    def __init__(self) -> None:
        self._awake = self._asleep = 0
        """Rounds that were timed and have shown what they take, and that were not since, of..."""
        self._length = NAP
        """... so many."""
        self._drafting = False
        """Whether something may have been drafted in those that were timed."""

    def ahead(self, drafting: bool) -> bool:
        """Whether the next such round is one of these. drafting: something may be drafted in it,
        and not only tried."""
        rested = self._awake >= AWAKE and self._drafting == drafting
        return rested and self._asleep < self._length

    def due(self, drafting: bool) -> bool:
        """The same of this round, which is counted."""
        ahead = self.ahead(drafting)
        self._asleep += ahead
        return ahead

    def rest(self, most: int) -> int:
        """So many rounds behind this one, at most, are counted as of this nap, as far as it goes;
        how many."""
        rounds = min(most, self._length - self._asleep)
        self._asleep += rounds
        return rounds

    def broken_off(self, rounds: int) -> None:
        """So many that were counted did not come."""
        self._asleep -= rounds

    def woke(self) -> bool:
        """A round is timed. Whether it follows another such one."""
        if not self._asleep:
            return True
        whole = self._asleep == self._length
        if not self._drafting:
            self._length = min(self._length * (1 + whole), LONGEST_IDLE)
        else:
            self._length = min(2 * self._length, LONGEST_NAP) if whole else NAP
        self._awake = self._asleep = 0
        return False

    def begin_anew(self) -> None:
        """What rounds take is not known so well any more."""
        self._length = NAP

    def timed(self, drafting: bool, shows: bool) -> None:
        """The round has ended. shows: what such rounds take: not, where requests come and go."""
        if drafting != self._drafting:
            self._awake, self._length = 0, NAP
        self._awake += shows
        self._drafting = drafting


class Pauses:
    """Rounds in which no lookup is asked, as what they found did not save what it takes to ask and
    to plan every round. Then it is tried again: what they find may have changed."""

    def __init__(self) -> None:
        self._asked = 0
        """Rounds since the last pause, and..."""
        self._judged = 0
        """... those since the last judgement."""
        self._worth = 0.0
        """Seconds, of those by which is judged."""
        self._took: float | None = None
        """Seconds a round, to ask and to plan."""
        self._rounds = FIRST_PAUSE
        """Of the next pause."""
        self._until = 0
        """The round in which the last pause ends, ..."""
        self._batch = 0
        """... for so many requests, ..."""
        self._first = ""
        """... whose first is this."""

    def due(self, now: int, batch: int, first: str) -> bool:
        """Whether the round `now`, of so many requests, is of one. first: of these. One alone that
        has just come is looked at."""
        if now >= self._until:
            return False
        return (batch > 1 or first == self._first) and alike(batch, self._batch)

    @property
    def until(self) -> int:
        """The round in which the last one ends."""
        return self._until

    @property
    def renews(self) -> bool:
        """Whether in the next round what is expected is to rest on what was learnt since the last
        pause, as by this round and those behind it is judged."""
        return self._asked == LEARNT_FOR

    def asked(self, now: int, batch: int, first: str, saves: float, took: float) -> None:
        """In the round `now` lookups were; saves: seconds that what is planned should save; took:
        what asking and planning did (something else may have had the processor)."""
        known = took if self._took is None else self._took
        self._took = averaged(known, min(took, OUTLIER * known))
        self._asked += 1
        if self._asked <= LEARNT_FOR:
            return
        self._worth += saves - self._took
        self._judged += 1
        if self._judged < JUDGED_FOR:
            return
        self._judged = 0
        if self._worth >= 0:
            self._rounds = FIRST_PAUSE
            self._worth = min(KEPT * self._worth, JUDGED_FOR * self._took)
        else:
            self._asked, self._batch, self._first, self._worth = 0, batch, first, 0.0
            self._until = now + 1 + self._rounds
            self._rounds = min(2 * self._rounds, LONGEST_PAUSE)
