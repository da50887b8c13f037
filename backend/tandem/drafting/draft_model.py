"""Drafting by a smaller model with a KV cache of its own (Leviathan et al. 2023).

The draft shares the target's block tables. What it has not computed yet of a request's text, be
it a prompt, a prefix that was cached without it, or the one token by which it lags after full
acceptance, is fed together with the last committed token in the first step of the next round.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem.attention.plan import Query
from tandem.drafting import Draft, Verdict
from tandem.request import Request
from tandem.runners.parallel_runner import Runner
from tandem.scheduler import Decode
from tandem.verification.sampler import Sampler, by_rejection
from tandem.verification.scores import Row


class _Chain:
    """A request's draft while it grows."""

    def __init__(self, place: int, decode: Decode) -> None:
        self.place = place
        self.request = decode.request
        self.lookahead = decode.lookahead
        self.tokens: list[int] = []


class DraftModelProposer:
    """Proposes chains. Greedy requests get the draft's argmax, seeded ones its coupled draw,
    all others a draw from q, which is handed over with the tokens."""

    def __init__(self, runner: Runner, sampler: Sampler, token_budget: int) -> None:
        self.runner = runner
        self.sampler = sampler
        self.token_budget = token_budget

    def propose(self, decodes: Sequence[Decode]) -> Draft:
        drafts: list[list[int]] = [[] for _ in decodes]
        chains = self._catch_up(decodes)
        if not chains:
            return Draft(drafts)
        q = self._empty_q(decodes, chains)
        logits = self._first_logits(chains)
        while chains:
            self._append(logits, chains, q)
            for chain in chains:
                drafts[chain.place] = chain.tokens
            chains = [chain for chain in chains if len(chain.tokens) < chain.lookahead]
            if chains:
                logits = self._next_logits(chains)
        return Draft(drafts, q=q)

    def observe(self, request: Request, drafted: int, verdict: Verdict) -> None:
        """The last drafted token was never fed, so after full acceptance the KV lags by one."""
        if drafted:
            request.draft_computed = len(request.tokens) + min(len(verdict.path), drafted - 1)

    def _catch_up(self, decodes: Sequence[Decode]) -> list[_Chain]:
        """Who drafts. Texts longer than the step's budget are first fed chunk by chunk."""
        chains: list[_Chain] = []
        budget = self.token_budget
        for place, decode in enumerate(decodes):
            request = decode.request
            missing = len(request.tokens) - request.draft_computed
            if decode.lookahead == 0 or budget <= 0:
                continue
            if missing <= budget:
                chains.append(_Chain(place, decode))
            else:
                self._feed(request, budget)
            budget -= missing
        return chains

    def _feed(self, request: Request, length: int) -> None:
        start = request.draft_computed
        query = Query(request.blocks, start, length)
        self.runner.forward(request.tokens[start : start + length], [query], rows=[])
        request.draft_computed += length

    def _empty_q(self, decodes: Sequence[Decode], chains: Sequence[_Chain]) -> Tensor | None:
        if not any(by_rejection(chain.request) for chain in chains):
            return None
        longest = max(chain.lookahead for chain in chains)
        vocab = self.runner.config.vocab_size
        return torch.zeros((len(decodes), longest, vocab), device=self.runner.device)

    def _first_logits(self, chains: Sequence[_Chain]) -> Tensor:
        """Feeds what each request's draft lacks of its text."""
        tokens: list[int] = []
        rows: list[int] = []
        for chain in chains:
            tokens += chain.request.tokens[chain.request.draft_computed :]
            rows.append(len(tokens) - 1)
        logits = self.runner.forward(tokens, [self._missing(c.request) for c in chains], rows)
        for chain in chains:
            chain.request.draft_computed = len(chain.request.tokens)
        return logits

    @staticmethod
    def _missing(request: Request) -> Query:
        start = request.draft_computed
        return Query(request.blocks, start, len(request.tokens) - start)

    def _next_logits(self, chains: Sequence[_Chain]) -> Tensor:
        """Feeds each chain's newest token."""
        queries = [
            Query(chain.request.blocks, len(chain.request.tokens) + len(chain.tokens) - 1, 1)
            for chain in chains
        ]
        return self.runner.forward([chain.tokens[-1] for chain in chains], queries)

    def _append(self, logits: Tensor, chains: Sequence[_Chain], q: Tensor | None) -> None:
        """Draws the next token of each chain and records what it was drawn from."""
        drawn = self.sampler.draw(logits, [Row(c.request, tuple(c.tokens)) for c in chains])
        if q is not None:
            places = [chain.place for chain in chains]
            q[places, len(chains[0].tokens)] = drawn.scores.softmax(-1)
        for chain, token in zip(chains, drawn.tokens.tolist(), strict=True):
            chain.tokens.append(token)
