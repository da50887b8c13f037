"""Proposers: one file a method, one interface. They guess; the target decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from tandem.request import Request
from tandem.scheduler import Decode


class Draft(NamedTuple):
    """Proposed tokens of B requests, each a chain or a tree of its own size.

    Node 0, the last committed token, is implied; proposed token i is node i + 1.
    """

    tokens: list[list[int]]
    """[B][N_b] proposed tokens; a parent comes before its children."""
    parents: list[list[int]] | None = None
    """[B][N_b] node that each proposed token follows; None: chains."""
    q: Tensor | None = None
    """[B, N, V] distributions the tokens were drawn from, for requests that are verified by
    rejection; None: the proposals are deterministic."""


class Verdict(NamedTuple):
    """What verification made of one request's draft."""

    path: list[int]
    """Accepted nodes from the root down, node 0 left out."""
    tokens: list[int]
    """Accepted tokens and the target's own next one: len(path) + 1."""


class Proposer(Protocol):
    """A method of speculation."""

    def propose(self, decodes: Sequence[Decode]) -> Draft:
        """Drafts for every decode, at most `lookahead` tokens each (none is allowed)."""
        ...

    def observe(self, request: Request, drafted: int, verdict: Verdict) -> None:
        """Told after each verification, before the tokens are committed."""
        ...


class NoProposer:
    """Plain decoding."""

    def propose(self, decodes: Sequence[Decode]) -> Draft:
        return Draft([[] for _ in decodes])

    def observe(self, request: Request, drafted: int, verdict: Verdict) -> None:
        """Keeps nothing."""
