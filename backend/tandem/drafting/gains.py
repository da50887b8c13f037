"""What each token of a draft should bring: how often drafts were kept, place by place."""

from __future__ import annotations

from collections.abc import Collection
from weakref import WeakKeyDictionary

from tandem.request import Request

PRIOR = 0.7  # of a token behind kept ones, before anything is known
TRUST = 4.0  # drafts that what is believed beforehand counts for
OF_A_REQUEST = 0.9  # what a request's earlier drafts count for after a new one
OF_A_METHOD = 0.998
UNUSED = 0.97  # what they count for after a round without one


class _Record:
    """How often the places of drafts were tried, and how often they were kept; old drafts fade.

    Plain numbers: of so few, arrays would take longer.
    """

    def __init__(self, longest: int, memory: float) -> None:
        self._tried = [0.0] * longest
        self._kept = [0.0] * longest
        self._memory = memory

    def update(self, tried: int, kept: Collection[int]) -> None:
        memory = self._memory if tried else UNUSED
        self._tried = [memory * count for count in self._tried]
        self._kept = [memory * count for count in self._kept]
        for place in range(tried):
            self._tried[place] += 1
        for place in kept:
            self._kept[place - 1] += 1

    def expected(self, usual: list[float]) -> list[float]:
        """What was seen at each place, mixed with what is usual there; and usual is so many times
        better or worse as the places that were tried were."""
        due = sum(tried * chance for tried, chance in zip(self._tried, usual, strict=False))
        better = (sum(self._kept) + TRUST) / (due + TRUST)
        found: list[float] = []
        least = 1.0
        for tried, kept, chance in zip(self._tried, self._kept, usual, strict=False):
            believed = min(1.0, better * chance)
            least = min(least, (kept + TRUST * believed) / (tried + TRUST))
            found.append(least)
        return found


class Gains:
    """A method's chances, place by place, that a drafted token is kept; of a tree's nodes the
    likeliest come first. The sum over a draft is the number of tokens that it should bring.

    A request begins with what is known of the method, and the method with PRIOR. What was learnt of
    a request fades while nothing is drafted, so that the method is tried again.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._prior = [PRIOR**place for place in range(1, longest + 1)]
        self._all = _Record(longest, OF_A_METHOD)
        self._usual: list[float] | None = None
        self._own: WeakKeyDictionary[Request, _Record] = WeakKeyDictionary()

    def expected(self, request: Request, count: int) -> list[float]:
        """[count], never rising."""
        if count == 0:
            return []
        if self._usual is None:
            self._usual = self._all.expected(self._prior)
        return self._of(request).expected(self._usual[:count])

    def learn(self, request: Request, tried: int, kept: Collection[int]) -> None:
        """Of the first `tried` tokens of a draft (none: there was no draft) those at the places
        `kept` (1 is the first) were right."""
        self._of(request).update(tried, kept)
        if tried:
            self._all.update(tried, kept)
            self._usual = None

    def _of(self, request: Request) -> _Record:
        record = self._own.get(request)
        if record is None:
            record = self._own[request] = _Record(self._longest, OF_A_REQUEST)
        return record
