"""What each token of a draft should bring: how often drafts were kept, place by place."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

Curve = NDArray[np.float64]
PRIOR = 0.7  # of a token behind kept ones, before anything is known
TRUST = 4.0  # drafts that what is believed beforehand counts for
OF_A_REQUEST = 0.9  # what a request's earlier drafts count for after a new one
OF_A_METHOD = 0.998
UNUSED = 0.97  # what they count for after a round without one


class Gains:
    """Chance, place by place, that a drafted token is kept; of a tree's nodes the likeliest come
    first. The sum over a draft is the number of tokens that it should bring.

    What was seen at a place is mixed with what its neighbour before suggests: that places fall off
    as they do for the method, or, for the method itself, by PRIOR. Old drafts fade, so that places
    that are not tried any more become worth a try.
    """

    def __init__(self, longest: int, method: Gains | None = None) -> None:
        self._method = method
        self._memory = OF_A_METHOD if method is None else OF_A_REQUEST
        self._tried = np.zeros(longest)
        self._kept = np.zeros(longest)
        self._curve: Curve | None = None

    def expected(self, count: int) -> Curve:
        """[count], never rising."""
        if self._curve is None or self._method is not None:
            self._curve = self._expect()
        return self._curve[:count]

    def _expect(self) -> Curve:
        longest = len(self._tried)
        usual = PRIOR ** np.arange(1.0, longest + 1)
        if self._method is not None:
            usual = self._method.expected(longest)
        found: list[float] = []
        own, before = 1.0, 1.0
        for tried, kept, here in zip(
            self._tried.tolist(), self._kept.tolist(), usual.tolist(), strict=True
        ):
            believed = own * here / before
            own = min(own, (kept + TRUST * believed) / (tried + TRUST))
            before = here
            found.append(own)
        return np.array(found)

    def update(self, tried: int, kept: Collection[int]) -> None:
        """Of the first `tried` tokens of a draft (none: there was no draft) those at the places
        `kept` (1 is the first) were right."""
        self._curve = None
        memory = self._memory if tried else UNUSED
        self._tried *= memory
        self._kept *= memory
        self._tried[:tried] += 1
        for place in kept:
            self._kept[place - 1] += 1
