"""Guessing with attention layers over the target's hidden states: EAGLE and MTP.

Row p of such a head sees the target's hidden state at position p and the token at p + 1, and
predicts the token at p + 2. Where the target has not been yet, the head's own output stands for the
hidden state. It has a KV cache of its own over the request's blocks; once the target has computed
the accepted tokens, their rows are written again, from true hidden states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tandem.attention.paged import PagedKVCache, kv_block_bytes
from tandem.attention.plan import Query
from tandem.drafting import Computed
from tandem.drafting.draft_model import level_query
from tandem.drafting.steps import Chains, Grown, Level, depth
from tandem.models.feature_head import FeatureHead
from tandem.request import Notes, Request
from tandem.runners.head_runner import HeadRunner
from tandem.scheduler import Decode
from tandem.verification.judging import Draws


class Mask(NamedTuple):
    """Stands for a token yet to be guessed (P-EAGLE)."""

    token: int
    features: Tensor
    """[width] in the place of the target's hidden states."""


class _State(NamedTuple):
    """At the end of a request's text."""

    length: int
    """Tokens of the text."""
    logits: Tensor
    """[V] of the token behind it."""
    hidden: Tensor
    """What the next row takes, [hidden] or more."""


class FeatureGuesser:
    """A guesser around a head."""

    reads_all = True

    def __init__(self, head: FeatureHead, dtype: torch.dtype, device: torch.device) -> None:
        self.head = head
        self.config = head.config
        """The shape of its KV cache."""
        self.dtype = dtype
        self.device = device
        self.taps: tuple[int, ...] | None = head.taps
        self.max_depth = head.config.max_position
        self.runner: HeadRunner
        self._states = Notes[_State]()
        self._hidden: Tensor  # of the last level, a row a node

    def block_bytes(self, block_size: int) -> int:
        """Bytes of KV a block takes."""
        return kv_block_bytes(self.config, self.dtype, block_size)

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Makes the KV cache."""
        self.cache = PagedKVCache(self.config, num_blocks, block_size, self.dtype, self.device)
        self.runner = HeadRunner(self.head, self.cache)

    @torch.inference_mode()
    def absorb(self, computed: Sequence[Computed], features: Tensor) -> None:
        """Runs the head over what the target has computed; keeps what is due at each text's end."""
        if not computed:
            return
        tokens: list[int] = []
        ends: list[int] = []
        for request, start, rows in computed:
            tokens += request.tokens[start + 1 : start + 1 + len(rows)]
            ends.append(len(tokens) - 1)
        rows_of_all = torch.tensor([row for one in computed for row in one.rows])
        hidden = features.index_select(0, rows_of_all.to(features.device))
        queries = [Query(one.request.blocks, one.start, len(one.rows)) for one in computed]
        logits, recurrent = self._read(tokens, hidden, queries, ends)
        for row, one in enumerate(computed):
            one.request.draft_computed = one.start + len(one.rows)
            length = one.request.draft_computed + 1
            self._states[one.request] = _State(length, logits[row], recurrent[row])

    def _read(
        self,
        tokens: Sequence[int],
        hidden: Tensor,
        queries: Sequence[Query],
        rows: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """Runs over rows of the texts and the target's hidden states: logits of `rows`, and what
        the steps behind these take."""
        return self.runner.step(tokens, hidden, queries, rows, fused=False, ends=True)

    def ready(self, decodes: Sequence[Decode]) -> list[int]:
        return list(range(len(decodes)))

    def begin(self, decodes: Sequence[Decode]) -> Tensor:
        return self._left([decode.request for decode in decodes])

    def _left(self, requests: Sequence[Request]) -> Tensor:
        """What `absorb` has left: logits of what follows, and hidden states."""
        states = [self._states[request] for request in requests]
        assert all(
            state.length == len(request.tokens)
            for state, request in zip(states, requests, strict=True)
        )
        self._hidden = torch.stack([state.hidden for state in states])
        return torch.stack([state.logits for state in states])

    @torch.inference_mode()
    def extend(self, levels: Sequence[Level]) -> Tensor:
        """Feeds the new nodes, each with the output of the one it was chosen from."""
        logits, self._hidden = self.runner.step(*self._level_rows(levels))
        return logits

    @property
    def at_once(self) -> Chains | None:
        return None if self.runner.by_kernels is None else self._chains

    def _chains(self, draws: Draws) -> Grown:
        logits = self._left([draw.request for draw in draws.chains])
        queries = [
            Query(draw.request.blocks, len(draw.request.tokens) - 1, draw.length - 1)
            for draw in draws.chains
        ]
        return Grown(*self.runner.chains(logits, queries, draws, self._hidden))

    def _level_rows(self, levels: Sequence[Level]) -> tuple[list[int], Tensor, list[Query]]:
        """Tokens of the new nodes, what their origins handed on, and where they go."""
        tokens = [token for level in levels for token in level.tokens[-level.new :]]
        origins = [row for level in levels for row in level.origins]
        queries = [level_query(level, lag=1) for level in levels]
        return tokens, self._hidden[origins], queries

    def keep(self, request: Request, nodes: int) -> None:
        """Everything is written again from true hidden states."""


class ParallelGuesser(FeatureGuesser):
    """For heads that guess all tokens at once (P-EAGLE): rows behind the text see
    a mask in the place of token and hidden state, and none knows the others' guesses."""

    def __init__(
        self, head: FeatureHead, mask: Mask, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(head, dtype, device)
        self.mask = Mask(mask.token, mask.features.to(dtype).to(device))
        self._first_row: dict[str, int] = {}
        self._masked: Tensor
        """[sum of lookahead - 1, V]"""

    @property
    def at_once(self) -> None:
        return None

    @torch.inference_mode()
    def begin(self, decodes: Sequence[Decode]) -> Tensor:
        logits = super().begin(decodes)
        self._first_row.clear()
        queries: list[Query] = []
        rows = 0
        for request, lookahead in decodes:
            self._first_row[request.id] = rows
            if lookahead > 1:
                queries.append(Query(request.blocks, len(request.tokens) - 1, lookahead - 1))
                rows += lookahead - 1
        if rows:
            hidden, masks = self.mask.features.expand(rows, -1), [self.mask.token] * rows
            self._masked, _ = self.runner.step(masks, hidden, queries, fused=False)
        return logits

    def extend(self, levels: Sequence[Level]) -> Tensor:
        """The next place's guesses, whatever the nodes are."""
        ahead = depth(levels[0]) - 1
        return self._masked[
            [self._first_row[one.request.id] + ahead for one in levels for _ in range(one.new)]
        ]
