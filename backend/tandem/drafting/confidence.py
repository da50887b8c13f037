"""How sure a draft is of its next token, and what that is worth.

A chain ends before a token that would be kept with too small a chance to pay for itself. How often
tokens are kept that a draft is so sure of is learnt from earlier rounds. The draft's probabilities
at a place follow from the tokens before it, so that nothing that is drawn there decides whether it
is drawn, and the text's distribution stays the target's.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise

from tandem.cpu.structures import SHARES
from tandem.drafting.gains import PRIOR
from tandem.verification.judging import KINDS, Gate

BELIEVED = 8.0  # tokens, that what is believed of a share beforehand counts for
REMEMBERED = 1000.0  # tokens of a share, that what is known of it counts for at most
SURE, UNSURE = 0.98, 0.3  # chances that are believed: at most, and at a share of nothing
DRAFTED, KEPT = 0.6, 0.9  # shares that are believed of drafts that may end, ...
BEFOREHAND = 30.0  # ... which count for so many tokens
OF_LATE = 0.995  # what earlier drafts count for after a new one


class Confidence:
    """Chances that drafted tokens are kept, by the share of the likeliest one; by how the request's
    tokens are drawn, too, for a share says another thing where nothing but the likeliest is."""

    def __init__(self) -> None:
        shares = [(step + 0.5) / SHARES for step in range(SHARES)]
        self._kept = array("f", [min(SURE, UNSURE + share) for share in shares] * KINDS)
        self._seen = [BELIEVED] * len(self._kept)
        self.gate: Gate | None = None
        """Of the round under way; None: chains have their lengths."""
        self._asked = self._drafted = self._whole = self._short = 0.0
        """Tokens, of late: asked for and drafted; that would have been kept had no draft ended, and
        that were."""

    def open_from(self, least: float) -> None:
        """Chains go on where all of them is kept with at least this chance; 0: always."""
        if self.gate is None or self.gate.least != least:
            self.gate = Gate(least, self._kept) if least > 0 else None

    def chance(self, noise: int, share: float) -> float:
        """That a token is kept behind kept ones. share: of the likeliest one."""
        return self._kept[self._place(noise, share)]

    def learn(self, noise: int, sure: Sequence[float], drafted: int, kept: int) -> None:
        """Of so many drafted tokens so many were kept. sure: the shares at their places."""
        chances, seen, first, last = self._kept, self._seen, noise * SHARES, SHARES - 1
        for at, share in enumerate(sure[: min(drafted, kept + 1)]):  # a plain line: there are many
            place = first + min(int(share * SHARES), last)
            count = seen[place] = min(REMEMBERED, seen[place] + 1)
            chances[place] += ((at < kept) - chances[place]) / count

    def beyond(self, noise: int, share: float, count: int) -> list[float]:
        """Chances of so many tokens that a draft was asked for too, which ended as it was sure of
        the first one only by this share."""
        chance = self.chance(noise, share)
        return [chance * PRIOR**more for more in range(count)]

    def ended(self, asked: int, drafted: int, kept: int, whole: float) -> None:
        """A draft that was asked for so many tokens had so many, of which so many were kept; had
        it gone on, these would have been."""
        self._asked = OF_LATE * self._asked + asked
        self._drafted = OF_LATE * self._drafted + drafted
        self._whole = OF_LATE * self._whole + whole
        self._short = OF_LATE * self._short + kept

    @property
    def drafted(self) -> float:
        """Of the tokens that drafts are asked for, the share that they have."""
        return (self._drafted + DRAFTED * BEFOREHAND) / (self._asked + BEFOREHAND)

    def planned(self, asked: int) -> int:
        """Tokens that a draft which is asked for so many, at least one, should have."""
        return max(1, round(self.drafted * asked))

    def squeezed(self, gains: Sequence[float]) -> list[float]:
        """Gains of tokens of drafts that do not end early, as those of the fewer that are drafted,
        none less than the next."""
        count = self.planned(len(gains))
        sums = [0.0, *accumulate(gains)]
        step = len(gains) / count
        kept = (self._short + KEPT * BEFOREHAND) / (self._whole + BEFOREHAND)
        whole = [kept * _between(sums, place * step) for place in range(count + 1)]
        return [after - before for before, after in pairwise(whole)]

    @staticmethod
    def _place(noise: int, share: float) -> int:
        return noise * SHARES + min(int(share * SHARES), SHARES - 1)


def _between(values: Sequence[float], place: float) -> float:
    """The value at a place that need not be whole."""
    first = min(int(place), len(values) - 2)
    return values[first] + (place - first) * (values[first + 1] - values[first])
