"""Guessing by a smaller model with a KV cache of its own (Leviathan et al. 2023).

The draft shares the target's block tables. What it has not computed yet of a request's text, be
it a prompt, a prefix that was cached without it, or what was accepted of its own last guesses but
not kept, is fed together with the last committed token in the first step of the next round.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tandem.attention.plan import Query
from tandem.cpu.told import Reading
from tandem.drafting import Computed
from tandem.drafting.steps import Chains, Grown, Level
from tandem.drafting.vocabulary import Translation
from tandem.request import Request
from tandem.runners.parallel_runner import Runner
from tandem.scheduler import Decode
from tandem.verification.judging import Draws


class DraftModel:
    """A guesser around a runner."""

    taps: tuple[int, ...] | None = None
    reads_all = True

    def __init__(
        self, runner: Runner, token_budget: int, translation: Translation | None = None
    ) -> None:
        """translation: from the target's tokens to the draft's, where they differ."""
        self.runner = runner
        self.token_budget = token_budget
        self.translation = translation
        self.max_depth = runner.config.max_position

    def ready(self, decodes: Sequence[Decode]) -> list[int]:
        """Those whose texts end within the step's budget, those that lack least first; the next one
        is fed what is left of it."""
        missing = [len(one.request.tokens) - one.request.draft_computed for one in decodes]
        if sum(missing) <= self.token_budget:
            return list(range(len(decodes)))
        ready, budget = list[int](), self.token_budget
        for index in sorted(range(len(decodes)), key=missing.__getitem__):
            if missing[index] > budget:
                self._feed(decodes[index].request, budget)
                break
            ready.append(index)
            budget -= missing[index]
        return sorted(ready)

    def _feed(self, request: Request, length: int) -> None:
        if not length:
            return
        start = request.draft_computed
        query = Query(request.blocks, start, length)
        self._forward(request.tokens[start : start + length], [query], rows=[])
        request.draft_computed += length

    def begin(self, decodes: Sequence[Decode]) -> Tensor:
        return self._forward(*self._missing([decode.request for decode in decodes]))

    def _missing(self, requests: Sequence[Request]) -> Reading:
        """What each request's draft lacks of its text, which is read from now on."""
        tokens: list[int] = []
        rows: list[int] = []
        queries: list[Query] = []
        for request in requests:
            start = request.draft_computed
            queries.append(Query(request.blocks, start, len(request.tokens) - start))
            tokens += request.tokens[start:]
            rows.append(len(tokens) - 1)
            request.draft_computed = len(request.tokens)
        return Reading(tokens, queries, rows)

    def extend(self, levels: Sequence[Level]) -> Tensor:
        """Feeds the new nodes."""
        tokens = [token for level in levels for token in level.tokens[-level.new :]]
        return self._forward(tokens, [level_query(level) for level in levels])

    @property
    def at_once(self) -> Chains | None:
        """Where the kernels run the draft, and its tokens are the target's."""
        same_ids = self.translation is None or self.translation.same_ids
        return self._chains if same_ids and self.runner.by_kernels is not None else None

    def _chains(self, draws: Draws) -> Grown:
        """In one call of the kernels."""
        kernels, translation = self.runner.by_kernels, self.translation
        assert kernels is not None
        first = self._missing([draw.request for draw in draws.chains])
        queries = [
            Query(draw.request.blocks, len(draw.request.tokens), draw.length - 1)
            for draw in draws.chains
        ]
        if translation is None:
            return Grown(*kernels.chains(first, queries, draws, self.runner.config.vocab_size))
        first = first._replace(tokens=translation.tokens(first.tokens))
        vocab, ids = len(translation.read_as), translation.ours
        return Grown(*kernels.chains(first, queries, draws, vocab, ids=ids))

    def _forward(
        self, tokens: Sequence[int], queries: Sequence[Query], rows: Sequence[int] | None = None
    ) -> Tensor:
        """Logits over the target's vocabulary, as in `Passed`."""
        if self.translation is None:
            return self.runner.forward(tokens, queries, rows).logits
        read = self.translation.tokens(tokens)
        return self.translation.logits(self.runner.forward(read, queries, rows).logits)

    def keep(self, request: Request, nodes: int) -> None:
        request.draft_computed = len(request.tokens) + nodes

    def absorb(self, computed: Sequence[Computed], features: Tensor) -> None:
        """It looks at tokens alone."""


def level_query(level: Level, lag: int = 0) -> Query:
    """A level's new nodes behind a text of which all but the last `lag` tokens are stored."""
    start, stored = len(level.request.tokens) - lag, len(level.tokens) - level.new
    if isinstance(level.parents, range):  # a chain: what is stored is like text
        return Query(level.request.blocks, start + stored, level.new)
    return Query(level.request.blocks, start, level.new, level.parents, stored)
