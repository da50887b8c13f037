"""Proposers: one file a method, one interface. They guess; the target decides."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from tandem.drafting.confidence import Confidence
from tandem.request import Request
from tandem.scheduler import Decode, StepPlan


class Verdict(NamedTuple):
    """What verification made of one request's draft."""

    path: list[int]
    """Accepted nodes from the root down, node 0 left out."""
    tokens: list[int]
    """Accepted tokens and the target's own next one: len(path) + 1."""


class Verified(NamedTuple):
    """What the target has made of B drafts already."""

    verdicts: list[Verdict]
    drafting: float
    """Seconds that drafting took, and..."""
    verifying: float
    """... the target's pass and its judgement."""


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
    drawn: list[bool] | None = None
    """[B] whose tokens were drawn from q, where q is given; None: all."""
    verified: Verified | None = None
    """Where one launch has drafted and verified; None: verification is yet to come."""
    sure: list[Sequence[float]] | None = None
    """[B] shares that the draft gave to its likeliest token, place by place: one more than tokens
    where it ended because that was too small. None: it does not look at them."""

    def depth(self, place: int) -> int:
        """Tokens on the longest path of one request's draft."""
        if self.parents is None:
            return len(self.tokens[place])
        depths = [0]
        for parent in self.parents[place]:
            depths.append(depths[parent] + 1)
        return max(depths)


class Computed(NamedTuple):
    """Rows of a target pass that now belong to a request's text."""

    request: Request
    start: int
    """Position of the first row; the others follow it."""
    rows: Sequence[int]
    """Their places in the pass."""


class Proposer(ABC):
    """A method of speculation. The defaults are those of one that looks at tokens alone."""

    taps: tuple[int, ...] | None = None
    """Which hidden states of the target it wants: the inputs of these layers, side by side; the
    last layer's, normed, where there are none; None: it wants no hidden states."""

    reads_all: bool = True
    """Whether the hidden states of all of a text must be shown to it, not its end's alone."""
    longest: int = sys.maxsize
    """Most tokens it can draft."""
    pads: bool = False
    """Whether all drafts of a step take as many rows as the longest one."""
    confidence: Confidence | None = None
    """What ends its drafts early; None: nothing does."""

    @property
    def may_draft(self) -> bool:
        """Whether in the next round, if it is for the same requests, there may be drafts: otherwise
        no room need be found for them."""
        return True

    def keeps_states(self, running: int, waiting: int) -> bool:
        """Whether in the next round, for so many requests, hidden states are kept where `taps` asks
        for them. waiting: of these, as far as there is room for them."""
        return True

    def taps_of(self, plan: StepPlan) -> tuple[int, ...] | None:
        """Which hidden states it wants of this round's pass, behind `propose`: `taps`, or none."""
        return self.taps

    @property
    def meanwhile(self) -> Callable[[], object] | None:
        """What it has to work out for the rounds to come, once, beside this round's pass, which is
        about to begin: it takes half as long then."""
        return None

    @abstractmethod
    def propose(self, decodes: Sequence[Decode], alone: bool = False) -> Draft:
        """Drafts for every decode, at most `lookahead` tokens each (none is allowed). alone: the
        target's pass will do nothing but verify them, so that they may be verified already."""

    def passed(self, rows: int, seconds: float) -> None:  # noqa: B027
        """Told after each pass and its verification: how many rows it had, those of prompts too,
        and how long both took."""

    def observe(  # noqa: B027
        self, decodes: Sequence[Decode], draft: Draft, verdicts: Sequence[Verdict]
    ) -> None:
        """Told after each verification, before the tokens are committed. draft, verdicts: of these
        decodes, and behind them of requests that had nothing to verify."""

    def absorb(self, computed: Sequence[Computed], features: Tensor) -> None:  # noqa: B027
        """Told after the commit, where `taps_of` asks for it: what the target has computed of each
        request's text. features [T, width], all rows of the pass."""

    def finished(self, request: Request) -> None:  # noqa: B027
        """Told when a request has written all it will."""


class NoProposer(Proposer):
    """Plain decoding."""

    def propose(self, decodes: Sequence[Decode], alone: bool = False) -> Draft:
        return Draft([[] for _ in decodes])
