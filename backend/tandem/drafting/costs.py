"""What a round's parts take: measured at start-up, then learnt from the rounds before. Nothing of a
round itself decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tandem.drafting.between import NOBODY, OUTLIER, BetweenPasses, steadied
from tandem.drafting.times import TextTimes, Times

A_LEVEL = 0.05  # of a pass, that a level of a model's draft is expected to take, and...
BEGINNING = 2.0  # ... levels, that it takes to begin one
UNUSUAL = 0.5  # of what a pass is expected to take: beyond it, something else took the processor
OF_REQUESTS = 0.2  # what a new pass counts for, of what is known of requests
AVERAGED = 8  # passes from which is learnt at once, by the average of those alike, and...
OF_AN_AVERAGE = 0.3  # ... what all of them count for
WRONG = 32.0  # times as long as one takes, drafts never are: what was seen first was disturbed
LEARN_EVERY = 16  # drafts: what takes long changes slowly, ...
SURPRISING = 0.15  # ... but what differs by so much from what was expected is learnt at once
MOVED = 0.05  # of what rounds take beside their rows, that is worth another sum
EXPLORING = 0.002  # of all time may go into drafts that are not expected to pay, ...
FIRST_PROBES = 8  # ... but for the first: what was known before anything was tried says little
READ_ALONG = 16  # tokens of a request that a draft reads in passing
LEVELS_MEMORY = 0.95  # as MEMORY, of how drafts grow with their levels: that changes but slowly


class DraftTimes:
    """Seconds of a model's drafts: by how many requests it drafts for, times a curve by levels. It
    begins as a line; what beginning a draft takes is not told apart."""

    def __init__(self) -> None:
        self._by_requests = Times()
        self._by_levels = Times({1: BEGINNING + 1, 2: BEGINNING + 2}, LEVELS_MEMORY)
        self._known: dict[int, list[float]] = {}
        """By requests and levels, as far as it was asked for."""
        self._drawn = 0
        """Drafts whose time was seen."""

    def of(self, requests: int, most: int) -> list[float]:
        """Seconds expected of drafts of 0 to at least `most` levels."""
        found = self._known.get(requests)
        if found is None or most >= len(found):
            times = self._by_requests.of(requests)
            levels = [0.0, *self._by_levels.upto(most)[1:]]
            found = self._known[requests] = [times * level for level in levels]
        return found

    def observe(self, requests: int, levels: float, seconds: float) -> None:
        """What is near to what was expected is learnt but now and then. No profile was made, so
        that whatever surprises counts."""
        by_requests, by_levels = self._by_requests.of(requests), self._by_levels.of(levels)
        if self._drawn and by_requests * by_levels > WRONG * seconds:
            self._by_requests, self._drawn = Times(), 0
        self._drawn += 1
        if self._drawn > 1:
            expected = by_requests * by_levels
            near = abs(seconds - expected) <= SURPRISING * expected
            if near and self._drawn % LEARN_EVERY:
                return
        self._by_requests.observe(requests, seconds / by_levels)
        if self._drawn > 1:
            self._by_levels.observe(levels, seconds / by_requests)
        self._known = {}


class Load(NamedTuple):
    """What passes are to serve."""

    requests: int
    texts: int = 0
    """Tokens of all of them together."""


class PassTimes:
    """Seconds of the target's passes: by their rows and texts, which a profile measures, and by
    requests, each of which adds the same however many rows it has. As much as NOBODY of them add is
    added once: what is done between passes drives the target's memory from the caches."""

    def __init__(
        self, known: Mapping[int, float] | None = None, texts: TextTimes | None = None
    ) -> None:
        """known: seconds of passes over so many rows of next to no text; texts: of these."""
        self._times = Times(known)
        self.texts = texts or TextTimes()
        self._by_rows: list[float] = []
        """The same by whole rows, as far as they were asked for."""
        self._a_request = 0.0
        self._recent: list[tuple[int, float, float]] = []
        """Passes not yet learnt from: rows, what those were expected to take, and what they took.
        (One by one, more of them are disturbed than would be quicker than usual.)"""

    def by_rows(self, most: int) -> list[float]:
        """Seconds expected of 0 to at least `most` rows, without texts."""
        if most >= len(self._by_rows):
            self._by_rows = self._times.upto(most)
        return self._by_rows

    def of_requests(self, requests: int) -> float:
        """Seconds expected of so many requests, and of what is added once."""
        return (NOBODY + requests) * self._a_request

    def observe(self, load: Load, rows: int, seconds: float) -> None:
        """A pass took so long. Without drafts, when rows are requests, what it takes more than was
        expected is the requests' doing, with them the rows'."""
        if not self._times.measured:
            self._times.observe(rows, seconds)
            self._by_rows = []
            return
        requests, alone, unknown = load.requests, self._times.of(rows), not self._a_request
        expected = alone + self.of_requests(requests) + self.texts.of(*load, rows)
        more = min(max(seconds - expected, -UNUSUAL * expected), UNUSUAL * expected)
        if rows == requests:
            each = OF_REQUESTS * more / (NOBODY + requests)
            self._a_request = max(0.0, self._a_request + each)
        if rows != requests or unknown:
            self._observe_rows(rows, alone, alone + more)

    def _observe_rows(self, rows: int, expected: float, seconds: float) -> None:
        self._recent.append((rows, expected, max(seconds, expected / OUTLIER)))
        if len(self._recent) < AVERAGED:
            return
        for size in {size for size, _, _ in self._recent}:
            like = [times for same, *times in self._recent if same == size]
            expectations, took = map(sum, zip(*like, strict=True))
            weight = OF_AN_AVERAGE * len(like) / AVERAGED
            self._times.observe(size, took / expectations * self._times.of(size), weight)
        self._by_rows, self._recent = [], []


def _moved(now: float, before: float) -> bool:
    return abs(now - before) > MOVED * abs(now)


class RoundCosts:
    """Seconds of a round by the rows of its target pass, and of a model's draft."""

    def __init__(
        self, passes: Mapping[int, float] | None = None, texts: TextTimes | None = None
    ) -> None:
        """As `PassTimes` takes them, from a profile."""
        self._passes = PassTimes(passes, texts)
        self._by_round: list[float] = []
        """Seconds of rounds by the rows of their passes, as far as they were asked for, ..."""
        self._by_rows: list[float] = []
        self._beside, self._a_row = 0.0, 0.0
        """... the sums of these and of what rounds took beside them, and each row's text."""
        self._drafted: DraftTimes | None = None
        self._reading: float | None = None
        """Seconds a token that the model reads."""
        self.between = BetweenPasses()
        self._elapsed = 0.0
        self._explored = 0.0
        self._probes = 0

    def elapse(self, seconds: float) -> None:
        """So much went by, which teaches nothing."""
        self._elapsed += seconds

    def observe_pass(self, load: Load, rows: int | None, seconds: float) -> None:
        """A pass over so many rows took so long; None: it says nothing of others, having read
        prompts too."""
        self.elapse(seconds)
        if rows is not None and seconds > 0:
            self._passes.observe(load, rows, seconds)

    def observe_draft(
        self, requests: int, levels: float, seconds: float, read: int, usual: bool = True
    ) -> None:
        """A model's draft of so many levels for so many requests took so long, or of more for some
        and fewer for others; it has read so many tokens for them before. usual: whether nothing
        else took the processor, as far as is known."""
        if read > READ_ALONG * requests:
            reading = max(0.0, seconds - self.drafts(requests, round(levels))[round(levels)])
            self._reading = steadied(self._reading, reading / read)
        elif levels and seconds > 0 and usual:
            self._drafted = self._drafted or DraftTimes()
            self._drafted.observe(requests, levels, seconds)

    @property
    def may_explore(self) -> bool:
        """Whether there is time for a draft that is not expected to pay."""
        return self._probes < FIRST_PROBES or self._explored <= EXPLORING * self._elapsed

    def explored(self, seconds: float) -> None:
        """So much went into such a draft."""
        self._probes += 1
        if self._probes > FIRST_PROBES:
            self._explored += seconds

    def passes(self, most: int) -> list[float]:
        """Seconds expected of passes over 0 to at least `most` rows of next to no text."""
        return self._passes.by_rows(most)

    def rounds(self, load: Load, most: int) -> list[float]:
        """The same of rounds with such passes behind texts, without a model's draft."""
        requests, texts = load
        beside = self.between.of(requests) + self._passes.of_requests(requests)
        beside += self._passes.texts.reading * texts
        a_row = self._passes.texts.computing * texts / requests
        by_rows = self.passes(most)
        moved = _moved(beside, self._beside) or _moved(a_row, self._a_row)
        if moved or by_rows is not self._by_rows:
            self._by_round = [
                seconds + beside + a_row * rows for rows, seconds in enumerate(by_rows)
            ]
            self._by_rows, self._beside, self._a_row = by_rows, beside, a_row
        return self._by_round

    def reading(self, tokens: int) -> float:
        """Seconds for the model to read so many tokens."""
        if tokens <= READ_ALONG or self._reading is None:
            return 0.0
        return tokens * self._reading

    def drafts(self, requests: int, most: int) -> list[float]:
        """Seconds expected of a model's drafts of 0 to at least `most` levels for so many
        requests."""
        if self._drafted is None:
            level = A_LEVEL * self.passes(requests)[requests]
            return [0.0, *(level * (BEGINNING + count) for count in range(1, most + 1))]
        return self._drafted.of(requests, most)
