"""Prompt lookup: propose what followed the last time the text ended like this.

Saxena 2023 ("Prompt Lookup Decoding"). The longest suffix of between `prompt_lookup_min` and
`prompt_lookup_max` tokens that occurred before, in prompt or output, is continued as it went on
then. An index of n-grams, updated by each new token, makes a look-up cost the same however long
the text is and however often it repeats.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.drafting import Draft, Proposer
from tandem.request import Notes, Request
from tandem.scheduler import Decode


class NgramIndex:
    """Where each n-gram of a text was last followed by something."""

    def __init__(self, smallest: int, largest: int) -> None:
        self.sizes = range(largest, smallest - 1, -1)
        self.follower: dict[tuple[int, ...], int] = {}
        """n-gram -> position of the token behind its latest occurrence."""
        self.indexed = 0
        """Positions whose preceding n-grams are in the index."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Takes in the tokens that are new since the last call."""
        for position in range(max(self.indexed, 1), len(tokens)):
            for size in self.sizes:
                if size <= position:
                    self.follower[tuple(tokens[position - size : position])] = position
        self.indexed = len(tokens)

    def lookup(self, tokens: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that may follow; a match that reaches the end repeats itself."""
        for size in self.sizes:
            if size > len(tokens):
                continue
            start = self.follower.get(tuple(tokens[-size:]))
            if start is not None:
                period = len(tokens) - start
                return [tokens[start + step % period] for step in range(count)]
        return []


class NgramProposer(Proposer):
    """Deterministic proposals from the request's own text."""

    def __init__(self, smallest: int, largest: int) -> None:
        self.smallest = smallest
        self.largest = largest
        self.indexes = Notes[NgramIndex]()

    def propose(self, decodes: Sequence[Decode], alone: bool = False) -> Draft:
        return Draft([self._propose(*decode) for decode in decodes])

    def _propose(self, request: Request, lookahead: int) -> list[int]:
        if lookahead == 0:
            return []
        index = self.indexes.get(request)
        if index is None:
            index = self.indexes[request] = NgramIndex(self.smallest, self.largest)
        index.extend(request.tokens)
        return index.lookup(request.tokens, lookahead)
