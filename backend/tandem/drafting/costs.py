"""What a round's parts take: measured at start-up, then learnt from the rounds before. Nothing of a
round itself decides."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from tandem.drafting.between import MEMORY, OUTLIER, BetweenPasses, averaged

A_ROW = 0.05  # of a one-row pass, that a further row is expected to add where nothing is known
A_LEVEL = 0.05  # of a pass, that a level of a model's draft is expected to take, and...
BEGINNING = 2.0  # ... levels, that it takes to begin one
OF_AN_OUTLIER = 0.02  # what a time counts for that is OUTLIER times what is known, or more
LONG_AGO = 16  # times of other sizes, since one was seen
OF_ONE_NOT_SEEN = 0.5  # what it counts for then
NEAR = 0.25  # of what is learnt of a size, for half of it and twice as much
LEARN_EVERY = 16  # rounds: what takes long changes slowly, ...
SURPRISING = 0.15  # ... but what differs by so much from what was expected is learnt at once
BETWEEN_MOVED = 0.05  # of what rounds take between their passes, that is worth another sum
EXPLORING = 0.002  # of all time may go into drafts that are not expected to pay, ...
FIRST_PROBES = 8  # ... but for the first: what was known before anything was tried says little
READ_ALONG = 16  # tokens of a request that a draft reads in passing
LEVELS_MEMORY = 0.95  # as MEMORY, of how drafts grow with their levels: that changes but slowly
SIZES = (*range(1, 18), *(part << up for up in range(3, 12) for part in (3, 4)))
LEAST_NEAR = 0.01  # as NEAR, and less is left alone
PROFILED = (1, 2, 4, 8, 16, 32, 64, 128, 256)
REPEATS = 3
LONG_S = 0.5  # a pass that takes longer is not repeated


def profile(run: Callable[[int], object], most: int) -> dict[int, float]:
    """Seconds that `run` takes for so many rows, the least of some tries; at most `most` rows.

    Most rows come first: they use memory that nobody has used yet, which takes long once.
    """
    found: dict[int, float] = {}
    for rows in sorted((rows for rows in PROFILED if rows <= most), reverse=True):
        for _ in range(REPEATS):
            began = time.perf_counter()
            run(rows)
            seconds = time.perf_counter() - began
            found[rows] = min(found.get(rows, seconds), seconds)
            if seconds > LONG_S:
                break
    return found


@lru_cache
def _near(size: float) -> tuple[tuple[int, float], ...]:
    """Which of SIZES learn from one, and how much of it."""
    apart = [abs(math.log2(other / size)) for other in SIZES]
    return tuple((i, NEAR**far) for i, far in enumerate(apart) if NEAR**far > LEAST_NEAR)


class Times:
    """Seconds by size, on SIZES; between them a line. More never takes less: where what is seen of
    a size contradicts what is known of others, they follow it. Without a profile all sizes are
    expected to take as long as the first one seen: where that is wrong, trying shows it.

    Plain numbers: behind a pass numpy's functions have left the processor's caches.
    """

    def __init__(self, known: Mapping[int, float] | None = None, memory: float = MEMORY) -> None:
        self._memory = memory
        self._seconds = [1.0] * len(SIZES)
        self._measured = bool(known)
        self._count = 0
        """Of what was observed, and..."""
        self._seen = [0] * len(SIZES)
        """... when each size was last."""
        if known:
            sizes = np.array(sorted(known), float)
            seconds = np.maximum.accumulate([known[int(size)] for size in sizes])
            beyond = np.maximum(0, np.array(SIZES) - sizes[-1])
            found = np.interp(SIZES, sizes, seconds) + _slope(sizes, seconds) * beyond
            self._seconds = found.tolist()

    def upto(self, most: int) -> list[float]:
        """Seconds expected of 0 to at least `most`."""
        found = self._seconds[:1]
        for place, (below, above) in enumerate(pairwise(self._seconds)):
            apart = SIZES[place + 1] - SIZES[place]
            step = (above - below) / apart
            found += [below + step * further for further in range(apart)]
            if len(found) > most:
                return found
        return found + self._seconds[-1:] * (most + 1 - len(found))

    def of(self, size: float) -> float:
        """The same of one."""
        place = min(bisect_left(SIZES, size), len(SIZES) - 1)
        above = self._seconds[place]
        if not place or size >= SIZES[place]:
            return above
        below = self._seconds[place - 1]
        lower, upper = SIZES[place - 1], SIZES[place]
        return below + (above - below) * (size - lower) / (upper - lower)

    def observe(self, size: float, seconds: float) -> None:
        """It took so long: the nearer a size, the more is learnt about it."""
        ratio = seconds / self.of(size)
        if self._measured:
            weight = self._weight(size) if ratio < OUTLIER else OF_AN_OUTLIER
            base = min(ratio, OUTLIER) ** weight
            for place, near in _near(size):
                self._seconds[place] *= base**near
            self._follow(size, ratio < 1)
        else:
            self._seconds = [one * ratio for one in self._seconds]
        self._measured = True

    def _follow(self, size: float, quicker: bool) -> None:
        """Fewer take no longer than what was found quicker, and more no less than what was found
        slower."""
        place = min(bisect_left(SIZES, size), len(SIZES) - 1)
        if quicker:
            below = accumulate(reversed(self._seconds[: place + 1]), min)
            self._seconds[: place + 1] = reversed(list(below))
        else:
            first = max(0, place - 1)
            self._seconds[first:] = accumulate(self._seconds[first:], max)

    def _weight(self, size: float) -> float:
        """Of a new time: the more, the longer ago the last one was seen."""
        self._count += 1
        place = min(bisect_left(SIZES, size), len(SIZES) - 1)
        long_ago = self._count - self._seen[place] > LONG_AGO
        self._seen[place] = self._count
        return OF_ONE_NOT_SEEN if long_ago else 1 - self._memory


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

    def observe(self, requests: int, levels: int, seconds: float) -> None:
        """As passes are learnt; but no profile has been made, so that whatever surprises counts."""
        self._drawn += 1
        if self._drawn > 1:
            expected = self.of(requests, levels)[levels]
            near = abs(seconds - expected) <= SURPRISING * expected
            if near and self._drawn % LEARN_EVERY:
                return
        by_requests, by_levels = self._by_requests.of(requests), self._by_levels.of(levels)
        self._by_requests.observe(requests, seconds / by_levels)
        if self._drawn > 1:
            self._by_levels.observe(levels, seconds / by_requests)
        self._known = {}


class RoundCosts:
    """Seconds of a round by the rows of its target pass, and of a model's draft."""

    def __init__(self, passes: Mapping[int, float] | None = None) -> None:
        """passes: seconds of passes over so many rows, from a profile."""
        self._passes = Times(passes)
        self._by_rows: list[float] = []
        """`_passes` by whole rows, as far as they were asked for, and..."""
        self._by_round: list[float] = []
        self._between_then = 0.0
        """... with what rounds took between them then."""
        self._drafted: DraftTimes | None = None
        self._reading: float | None = None
        """Seconds a token that the model reads."""
        self.between = BetweenPasses()
        self._rounds = 0
        self._elapsed = 0.0
        self._explored = 0.0
        self._probes = 0

    def observe_pass(self, rows: int | None, seconds: float) -> None:
        """A pass over so many rows took so long; None: it read prompts too, and says nothing of
        others."""
        self._elapsed += seconds
        self._rounds += 1
        if rows is not None and seconds > 0 and not self._may_skip_pass(rows, seconds):
            self._passes.observe(rows, seconds)
            self._by_rows, self._by_round = [], []

    def _may_skip_pass(self, rows: int, seconds: float) -> bool:
        """Whether this time need not be learnt: it is near what is known, or so far off that it
        means nothing; each LEARN_EVERY-th round is learnt from all the same."""
        if self._rounds % LEARN_EVERY == 0:
            return False
        expected = self._passes.of(rows)
        return not SURPRISING * expected < abs(seconds - expected) < (OUTLIER - 1) * expected

    def observe_draft(self, requests: int, levels: int, seconds: float, read: int) -> None:
        """A model's draft of so many levels for so many requests took so long; it has read so many
        tokens for them before."""
        if read > READ_ALONG * requests:
            reading = max(0.0, seconds - self.drafts(requests, levels)[levels])
            self._reading = averaged(self._reading, reading / read)
        elif seconds > 0:
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
        """Seconds expected of passes over 0 to at least `most` rows."""
        if most >= len(self._by_rows):
            self._by_rows = self._passes.upto(most)
        return self._by_rows

    def rounds(self, requests: int, most: int) -> list[float]:
        """The same of so many requests' rounds with such passes, without a model's draft."""
        between = self.between.of(requests)
        moved = abs(between - self._between_then) > BETWEEN_MOVED * between
        if moved or most >= len(self._by_round):
            self._by_round = [seconds + between for seconds in self.passes(most)]
            self._between_then = between
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


def _slope(sizes: NDArray[np.float64], seconds: NDArray[np.float64]) -> float:
    """Seconds a row, at the end of a profile."""
    if len(sizes) < 2:
        return A_ROW * float(seconds[0])
    return float((seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]))
