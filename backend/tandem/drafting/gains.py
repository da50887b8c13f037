"""What each token of a draft should bring: how often drafts were kept, place by place."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from math import log

PRIOR = 0.7  # of a token behind kept ones, before anything is known
TRUST = 24.0  # of a request's drafts, that what its method is known for counts for
FIRST_TRUST = 4.0  # of a method's drafts, that what is believed beforehand counts for
OF_A_REQUEST = 0.97  # what a request's earlier drafts count for after a new one
OF_A_METHOD = 0.998
HEAVIEST = 1e6
LEAST = 1e-9  # of a chance: others are divided by it
STEADY = 8  # times as many drafts must be known as may come, before a method is judged anew, ...
MOST_UNSEEN = 32  # ... and no more than so many
DOUBTED = 0.55  # of a first token, and less: that its method is worth no more is tested, against...
SURE = log(1000)  # ... PRIOR: so many times as likely this must be
UNUSED = 0.97  # what they count for after a round without one


class _Record:
    """How often the places of drafts were tried, and how often they were kept; old drafts fade.

    Plain numbers: of so few, arrays would take longer. A new draft counts for more than the ones
    before instead of those for less, so that only the places tried are touched.
    """

    def __init__(self, longest: int, memory: float) -> None:
        self._ends = [0.0] * (longest + 1)
        """Drafts by how many of their tokens were tried."""
        self._before = [0.0] * longest
        """By place: drafts in which it was tried and the place before was kept, and..."""
        self._kept = [0.0] * longest
        """... those in which it was kept."""
        self._memory = memory
        self._weight = 1.0
        """Of the newest draft."""
        self.drafts = 0
        """Learnt from, those that have faded too."""
        self.doubt = 0.0
        """Logarithm of how many times as likely it is, that of late first tokens were kept by PRIOR
        and not as was believed."""

    def fade(self, rounds: int) -> None:
        """So many had no draft."""
        self._weight /= UNUSED**rounds
        if self._weight > HEAVIEST:
            self._keep_small()

    def update(self, tried: int, kept: Collection[int], beyond: Sequence[float] = ()) -> None:
        self._weight /= self._memory
        self.drafts += 1
        reached = tried + len(beyond)
        weight, before, counts = self._weight, self._before, self._kept
        self._ends[reached] += weight
        if reached:
            before[0] += weight
        for place in kept:
            counts[place - 1] += weight
            if place < reached:
                before[place] += weight
        if beyond and len(kept) == tried:
            for place, chance in enumerate(beyond, tried + 1):
                counts[place - 1] += chance * weight
                if place < reached:
                    before[place] += chance * weight
        if weight > HEAVIEST:
            self._keep_small()

    def _keep_small(self) -> None:
        self._ends = [count / self._weight for count in self._ends]
        self._before = [count / self._weight for count in self._before]
        self._kept = [count / self._weight for count in self._kept]
        self._weight = 1.0

    def usual(self) -> list[float]:
        """What was seen at each place, mixed with what the places before suggest: that chances go
        on falling as they did. A place that was never reached must not look worse than it may be,
        or it never would be.

        Long drafts are of requests that do well. So a place is compared with the one before it in
        the same drafts, or others would be expected to do as well there."""
        trust = FIRST_TRUST * self._weight
        found: list[float] = []
        own, least, guess = 1.0, 1.0, PRIOR
        for place, (before, kept) in enumerate(zip(self._before, self._kept, strict=True), 1):
            own = max(LEAST, min(1.0, own * (kept + trust * guess) / (before + trust)))
            guess = own ** (1 / place)
            least = min(least, own)
            found.append(least)
        return found

    def expected(self, usual: list[float]) -> list[float]:
        """What was seen at each place, mixed with what the place before suggests: that chances fall
        as they usually do."""
        trust = TRUST * self._weight
        tried = reversed(list(accumulate(reversed(self._ends[1:]))))
        found: list[float] = []
        own = least = before = 1.0
        for count, kept, chance in zip(tried, self._kept, usual, strict=False):
            own = (kept + trust * own * chance / before) / (count + trust)
            before, least = chance, min(least, own)
            found.append(least)
        return found


Records = dict[int, _Record]
"""How drafts fared, by `Gains.size`."""


class Gains:
    """A method's chances, place by place, that a drafted token is kept; of a tree's nodes the
    likeliest come first. The sum over a draft is the number of tokens that it should bring.

    A request begins with what is known of the method, and the method with PRIOR. What was learnt of
    a request fades while nothing is drafted, so that the method is tried again.

    Drafts are told apart by their lengths, by powers of two: a lookup that finds much has seen a
    long match, and is right more often from the first token on.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._all: Records = {}
        self._usual: dict[int, list[float]] = {}
        """Of `_all`, as far as it was asked for, and..."""
        self._renewed: dict[int, int] = {}
        """... from how many drafts; a few more of many would change little."""

    @staticmethod
    def size(count: int) -> int:
        """Drafts of so many tokens are like others of the same size."""
        return count.bit_length()

    def expected(self, own: Records, count: int) -> list[float]:
        """Of the tokens of a draft like one of `count`, and of no fewer; never rising. own: what
        was learnt of the request, nothing at first."""
        size = self.size(count)
        record = self._record(size)
        known = self._renewed.get(size, -1)
        if record.drafts - known > min(known // STEADY, MOST_UNSEEN):
            self._usual[size], self._renewed[size] = record.usual(), record.drafts
        usual = self._usual[size][: min(self._longest, (1 << size) - 1)]
        return own[size].expected(usual) if size in own else usual

    def learn(
        self,
        own: Records | None,
        count: int,
        tried: int,
        kept: Collection[int],
        beyond: Sequence[float] = (),
        shared: bool = True,
    ) -> None:
        """Of a draft of `count` tokens the first `tried` were judged, and those at the places
        `kept` (1 is the first) were right. beyond: of tokens behind them that were not drafted, the
        chances that they would have been kept, too, where all before them were. shared: the method
        is judged by it too; own: as in `expected`, or None: of no request."""
        size = self.size(count)
        if own is not None:
            if size not in own:
                own[size] = _Record(self._longest, OF_A_REQUEST)
            own[size].update(tried, kept, beyond)
        if shared:
            self._record(size).update(tried, kept, beyond)

    def doubt(self, count: int, kept: bool) -> None:
        """Begins anew with a method that has become far better: where it is only tried now and
        then, it would take very long to outweigh what is known. (By the cumulative sum of
        likelihood ratios: Page 1954.) count: as in `learn`, which has learnt from the same draft;
        kept: its first token was."""
        size = self.size(count)
        believed, record = self._usual.get(size, [PRIOR])[0], self._record(size)
        if believed > DOUBTED:
            record.doubt = 0.0
            return
        record.doubt += log(PRIOR / believed if kept else (1 - PRIOR) / (1 - believed))
        record.doubt = max(0.0, record.doubt)
        if record.doubt > SURE:
            del self._all[size], self._usual[size], self._renewed[size]

    def _record(self, size: int) -> _Record:
        """Of all requests."""
        record = self._all.get(size)
        if record is None:
            record = self._all[size] = _Record(self._longest, OF_A_METHOD)
        return record

    @staticmethod
    def fade(own: Records, rounds: int) -> None:
        """In so many rounds nothing was drafted for the request."""
        for record in own.values():
            record.fade(rounds)
