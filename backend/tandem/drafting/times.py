"""What takes how long by its size: measured at the start, then learnt from what was timed."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.drafting.between import MEMORY, OUTLIER

A_ROW = 0.05  # of a one-row pass, that a further row is expected to add where nothing is known
OF_AN_OUTLIER = 0.02  # what a time counts for that is OUTLIER times what is known, or more
LONG_AGO = 16  # times of other sizes, since one was seen
OF_ONE_NOT_SEEN = 0.5  # what it counts for then
COMMON = 0.5  # of what is learnt of a size, for all of them: the machine is slower or faster
NEAR = 0.25  # of the rest, for half of it and twice as much
# (A matrix unit takes rows by blocks of 16: the first row of a block takes longer than all others.
# Of more rows a block is a smaller part, and what ends together is read together.)
BLOCKS = (16, 32)
BEHIND_BLOCKS = tuple(rows + 1 for rows in BLOCKS)
HALVINGS = (part << up for up in range(3, 12) for part in (3, 4))
SIZES = tuple(sorted({*range(1, 17), *HALVINGS, *BEHIND_BLOCKS}))
FEW_ROWS, MANY_ROWS = (1, 2, 4, 8, 12, 14, 24), (48, 64, 96, 128, 256, 512)
PROFILED = tuple(sorted((*FEW_ROWS, *BLOCKS, *BEHIND_BLOCKS, *MANY_ROWS)))
BEHIND_TEXTS = 8  # requests, with as many rows or with as many each, are profiled behind texts...
TEXT = 256  # ... of so many tokens
REPEATS = 3
LONG_S = 0.5  # a pass that takes longer is not repeated


class TextTimes(NamedTuple):
    """Seconds that texts behind a pass's rows add to it."""

    reading: float = 0.0
    """A token, and..."""
    computing: float = 0.0
    """... a token and a row that sees it."""

    def of(self, requests: int, texts: int, rows: int) -> float:
        """With so many tokens and rows of so many requests, which have the same share of both."""
        return texts * (self.reading + self.computing * rows / requests)


class Profile(NamedTuple):
    """What passes take before any was needed."""

    rows: dict[int, float]
    """Seconds by rows, without texts."""
    texts: TextTimes


Run = Callable[[int, int, int], object]
"""A pass of so many requests with so many rows each, behind texts of so many tokens, ..."""
Timed = Callable[[int, int, int], float]
"""... and the seconds that it takes."""


def profile(run: Run, most: int, text: int = TEXT, warm: bool = False) -> Profile:
    """Of at most `most` rows. text: tokens that a request and its draft may have. warm: the first
    pass of a kind is not timed, as where kernels are compiled for it.

    Most rows come first: they use memory that nobody has used yet, which takes long once.
    """

    def timed(requests: int, each: int, behind: int) -> float:
        one = partial(run, requests, each, behind)
        if warm:
            one()
        return _seconds(one)

    sizes = sorted((rows for rows in PROFILED if rows <= most), reverse=True)
    rows = {size: timed(size, 1, 0) for size in sizes}
    return Profile(rows, _profile_texts(timed, min(most, sizes[0]), text))


def _profile_texts(timed: Timed, most: int, text: int) -> TextTimes:
    """By what a text adds to a pass of one row a request, and to one of several."""
    requests = each = BEHIND_TEXTS
    while requests * each > most:
        requests, each = (requests // 2, each) if requests >= each else (requests, each // 2)
    behind = text - each
    if each < 2 or behind < 1:
        return TextTimes()
    one, several = (_added_by_texts(timed, requests, many, behind) for many in (1, each))
    computing = max(0.0, several - one) / (requests * behind * (each - 1))
    return TextTimes(max(0.0, one / (requests * behind) - computing), computing)


def _added_by_texts(timed: Timed, requests: int, each: int, behind: int) -> float:
    """Seconds."""
    without, with_texts = (timed(requests, each, text) for text in (0, behind))
    return max(0.0, with_texts - without)


def _seconds(run: Callable[[], object]) -> float:
    """The least of some tries."""
    found = math.inf
    for _ in range(REPEATS):
        began = time.perf_counter()
        run()
        seconds = time.perf_counter() - began
        found = min(found, seconds)
        if seconds > LONG_S:
            break
    return found


@lru_cache
def _near(size: float) -> tuple[tuple[int, float], ...]:
    """Which of SIZES learn from one, and how much of it."""
    apart = [abs(math.log2(other / size)) for other in SIZES]
    return tuple((i, COMMON + (1 - COMMON) * NEAR**far) for i, far in enumerate(apart))


class Times:
    """Seconds by size, on SIZES; between them a line. More never takes less: where what is seen of
    a size contradicts what is known of others, they follow it. Without a profile all sizes are
    expected to take as long as the first one seen: where that is wrong, trying shows it.

    Plain numbers: behind a pass numpy's functions have left the processor's caches.
    """

    def __init__(self, known: Mapping[int, float] | None = None, memory: float = MEMORY) -> None:
        self._memory = memory
        self._seconds = [1.0] * len(SIZES)
        self.measured = bool(known)
        """Whether anything is known."""
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

    def observe(self, size: float, seconds: float, weight: float | None = None) -> None:
        """It took so long: the nearer a size, the more is learnt about it. weight: what it counts
        for, if not as one time does."""
        ratio = seconds / self.of(size)
        if self.measured:
            if weight is None:
                weight = self._weight(size) if ratio < OUTLIER else OF_AN_OUTLIER
            base = min(ratio, OUTLIER) ** weight
            for place, near in _near(size):
                self._seconds[place] *= base**near
            self._follow(size, ratio < 1)
        else:
            self._seconds = [one * ratio for one in self._seconds]
        self.measured = True

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


def _slope(sizes: NDArray[np.float64], seconds: NDArray[np.float64]) -> float:
    """Seconds a row, at the end of a profile."""
    if len(sizes) < 2:
        return A_ROW * float(seconds[0])
    return float((seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]))
