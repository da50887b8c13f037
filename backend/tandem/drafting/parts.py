"""One request's draft by one method: cut, judged, and joined to the others'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tandem.drafting import Draft, Verdict


class Part(NamedTuple):
    """One request's draft by one method."""

    tokens: list[int]
    parents: list[int] | None

    def cut(self, length: int) -> Part:
        """Its first tokens; parents come first."""
        if length == len(self.tokens):
            return self
        return Part(self.tokens[:length], self.parents and self.parents[:length])

    def judged(self, text: Sequence[int]) -> tuple[int, list[int]]:
        """Though it was not taken: how many of its first tokens can be judged by what the text
        became, and the places of those that were right. How far that is does not depend on whether
        it was right, or only failures would be seen of what lies beyond the text."""
        parents = range(len(self.tokens)) if self.parents is None else self.parents
        depths, path = [0], [0]
        for node, (token, parent) in enumerate(zip(self.tokens, parents, strict=True), 1):
            depths.append(depths[parent] + 1)
            if depths[node] > len(text):
                return node - 1, path[1:]
            if parent == path[-1] and token == text[depths[node] - 1]:
                path.append(node)
        return len(self.tokens), path[1:]

    def verified(self, length: int, verdict: Verdict) -> tuple[int, list[int]]:
        """Its first `length` tokens were: the same. The one behind them, which was cut off, is
        known to be right or wrong too, so that a draft that is always cut is not forgotten."""
        if length == len(self.tokens):
            return length, verdict.path
        parent = length if self.parents is None else self.parents[length]
        follows = parent == (verdict.path[-1] if verdict.path else 0)
        right = follows and self.tokens[length] == verdict.tokens[-1]
        return length + 1, [*verdict.path, length + 1] if right else verdict.path


NOTHING = Part([], None)


def part_of(draft: Draft, index: int) -> Part:
    return Part(draft.tokens[index], draft.parents[index] if draft.parents else None)


def joined(parts: Sequence[Part], guessed: Draft, drawn: list[bool] | None) -> Draft:
    """guessed: the model's draft, which is among the parts."""
    tokens = [part.tokens for part in parts]
    if not [part for part in parts if part.parents is not None]:
        return Draft(tokens, None, guessed.q, drawn, guessed.verified)
    assert guessed.verified is None  # chains alone are
    parents = [
        list(range(len(part.tokens))) if part.parents is None else part.parents for part in parts
    ]
    return Draft(tokens, parents, guessed.q, drawn)
