"""How sure a draft is of its next token, and what that is worth.

A chain ends before a token that would be kept with too small a chance to pay for itself. How often
tokens are kept that a draft is so sure of is learnt from earlier rounds. The draft's probabilities
at a place follow from the tokens before it, so that nothing that is drawn there decides whether it
is drawn, and the text's distribution stays the target's.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from tandem.cpu.structures import SHARES
from tandem.verification.judging import KINDS, Gate

BELIEVED = 8.0  # tokens, that what is believed of a share beforehand counts for
REMEMBERED = 1000.0  # tokens of a share, that what is known of it counts for at most
SURE, UNSURE = 0.98, 0.3  # chances that are believed: at most, and at a share of nothing


class Confidence:
    """Chances that drafted tokens are kept, by the share of the likeliest one; by how the request's
    tokens are drawn, too, for a share says another thing where nothing but the likeliest is."""

    def __init__(self) -> None:
        shares = [(step + 0.5) / SHARES for step in range(SHARES)]
        self._kept = array("f", [min(SURE, UNSURE + share) for share in shares] * KINDS)
        self._seen = [BELIEVED] * len(self._kept)
        self.gate: Gate | None = None
        """Of the round under way; None: chains have their lengths."""

    def open_from(self, least: float) -> None:
        """Chains go on where all of them is kept with at least this chance; 0: always."""
        self.gate = Gate(least, self._kept) if least > 0 else None

    def chance(self, noise: int, share: float) -> float:
        """That a token is kept behind kept ones. share: of the likeliest one."""
        return self._kept[self._place(noise, share)]

    def learn(self, noise: int, sure: Sequence[float], drafted: int, kept: int) -> None:
        """Of so many drafted tokens so many were kept. sure: the shares at their places."""
        for at, share in enumerate(sure[: min(drafted, kept + 1)]):
            place = self._place(noise, share)
            self._seen[place] = min(REMEMBERED, self._seen[place] + 1)
            self._kept[place] += ((at < kept) - self._kept[place]) / self._seen[place]

    @staticmethod
    def _place(noise: int, share: float) -> int:
        return noise * SHARES + min(int(share * SHARES), SHARES - 1)
