"""A guesser's chain: one guess follows the other.

Greedy requests get the likeliest token, seeded ones the guesser's coupled draw, all others a draw
from q, which is handed over with the tokens for rejection sampling (Leviathan et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from tandem.drafting import Computed, Draft, Proposer, Verdict
from tandem.drafting.confidence import Confidence
from tandem.drafting.steps import Guesser, Level
from tandem.scheduler import Decode
from tandem.verification.sampler import Sampler, by_rejection
from tandem.verification.scores import Row

Rounds: TypeAlias = Callable[[Sequence[Decode]], Draft | None]
"""Drafts and verifies in one launch; None: not these."""


class Chain:
    """A request's draft while it grows."""

    def __init__(self, place: int, row: int, decode: Decode, deepest: int) -> None:
        self.place = place
        self.row = row
        self.decode = decode
        self.request = decode.request
        self.lookahead = min(decode.lookahead, deepest)
        self.tokens: list[int] = []
        self.sure: Sequence[float] = ()
        """As in `Draft`."""

    def level(self) -> Level:
        """Its newest token."""
        count = len(self.tokens)
        return Level(self.request, self.tokens, range(-1, count - 1), 1, [self.row])


class ChainProposer(Proposer):
    """Proposes chains."""

    def __init__(
        self, guesser: Guesser, sampler: Sampler, vocab: int, rounds: Rounds | None = None
    ) -> None:
        """vocab: the target's."""
        self.guesser = guesser
        self.sampler = sampler
        self.vocab = vocab
        self.rounds = rounds
        self.taps, self.reads_all = guesser.taps, guesser.reads_all
        self.longest, self.pads = guesser.max_depth, rounds is not None
        self.confidence = None if guesser.at_once is None else Confidence()

    def propose(self, decodes: Sequence[Decode], alone: bool = False) -> Draft:
        drafts: list[list[int]] = [[] for _ in decodes]
        asking = [place for place, decode in enumerate(decodes) if decode.lookahead]
        if not asking:
            return Draft(drafts)
        if alone and self.rounds is not None:
            verified = self.rounds(decodes)
            if verified is not None:
                return verified
        ready = self.guesser.ready([decodes[place] for place in asking])
        if not ready:
            return Draft(drafts)
        chains = [
            Chain(asking[index], row, decodes[asking[index]], self.longest)
            for row, index in enumerate(ready)
        ]
        q = self._empty_q(len(decodes), chains)
        if not self._at_once(chains, q):
            self._by_levels(chains, q)
        sure: list[Sequence[float]] = [()] * len(decodes)
        for chain in chains:
            drafts[chain.place], sure[chain.place] = chain.tokens, chain.sure
        return Draft(drafts, q=q, sure=sure)

    def _at_once(self, chains: Sequence[Chain], q: Tensor | None) -> bool:
        """Has the guesser draw all tokens by itself, where it can and nothing is banned."""
        requests = [chain.request for chain in chains]
        draw_chains = self.guesser.at_once
        if draw_chains is None or any(one.bans for one in requests):
            return False
        lengths = [chain.lookahead for chain in chains]
        gate = None if self.confidence is None else self.confidence.gate
        draws = self.sampler.draws(requests, lengths, q, [chain.place for chain in chains], gate)
        found = draw_chains(draws)
        for chain, tokens in zip(chains, found.tokens, strict=True):
            chain.tokens = tokens
        for chain, sure in zip(chains, found.sure, strict=False):
            chain.sure = sure
        return True

    def _by_levels(self, chains: Sequence[Chain], q: Tensor | None) -> None:
        """None ends early, so that each has what one that may would have on average."""
        logits = self.guesser.begin([chain.decode for chain in chains])
        if self.confidence is not None and self.confidence.gate is not None:
            for chain in chains:
                chain.lookahead = self.confidence.planned(chain.lookahead)
        while chains:
            self._append(logits, chains, q)
            chains = [chain for chain in chains if len(chain.tokens) < chain.lookahead]
            if chains:
                logits = self.guesser.extend([chain.level() for chain in chains])
                for row, chain in enumerate(chains):
                    chain.row = row

    def observe(self, decodes: Sequence[Decode], draft: Draft, verdicts: Sequence[Verdict]) -> None:
        """The last drafted token was never fed."""
        for (request, _), tokens, verdict in zip(decodes, draft.tokens, verdicts, strict=False):
            if tokens:
                self.guesser.keep(request, min(len(verdict.path), len(tokens) - 1))

    def absorb(self, computed: Sequence[Computed], features: Tensor) -> None:
        self.guesser.absorb(computed, features)

    def _empty_q(self, count: int, chains: Sequence[Chain]) -> Tensor | None:
        if not any(by_rejection(chain.request) for chain in chains):
            return None
        longest = max(chain.lookahead for chain in chains)
        return torch.empty((count, longest, self.vocab), device=self.sampler.generator.device)

    def _append(self, logits: Tensor, chains: Sequence[Chain], q: Tensor | None) -> None:
        """Draws the next token of each chain and records what it was drawn from."""
        if len(chains) < len(logits):
            logits = logits[[chain.row for chain in chains]]
        drawn = self.sampler.draw(logits, [Row(c.request, tuple(c.tokens)) for c in chains])
        if q is not None:
            shares, depth = drawn.scores.softmax(-1), len(chains[0].tokens)
            first, last = chains[0].place, chains[-1].place
            if last - first + 1 == len(chains):  # as a rule; indices would have all threads woken
                q[first : last + 1, depth] = shares
            else:
                q[[chain.place for chain in chains], depth] = shares
        for chain, token in zip(chains, drawn.tokens, strict=True):
            chain.tokens.append(token)
