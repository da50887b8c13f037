"""A head that reads the target's hidden states, and its KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem.attention.paged import PagedKVCache
from tandem.attention.plan import Query
from tandem.cpu.decoder import KernelStack
from tandem.cpu.library import has_kernels
from tandem.cpu.told import States
from tandem.models.feature_head import FeatureHead
from tandem.verification.judging import Draws


class HeadRunner:
    """Runs flat batches of queries, as a `ModelRunner` does."""

    def __init__(self, head: FeatureHead, cache: PagedKVCache, first: int = 0) -> None:
        """first: the layer of the cache where the head's begin."""
        self.head = head
        self.cache = cache
        self.first = first
        self.by_kernels: KernelStack | None = None
        data = cache.data
        if has_kernels(data.device, data.dtype, head.config.head_dim):
            self.by_kernels = KernelStack(head, cache, first)

    def step(
        self,
        tokens: Sequence[int],
        hidden: Tensor,
        queries: Sequence[Query],
        rows: Sequence[int] | None = None,
        fused: bool = True,
        ends: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """tokens [T], hidden [T, hidden] to float32 logits [R, V] of `rows` (None: all) and what
        stands for the hidden states in the next step, [T, hidden].

        fused: `hidden` is what the head has made of the target's hidden states; otherwise it is
        those, [T, width]. ends: the hidden states too are of `rows` alone, [R, hidden].
        """
        if self.by_kernels is None:
            hidden = hidden if fused else self.head.fuse(hidden)
            logits, made = self._by_torch(tokens, hidden, queries, rows)
            made = made[list(rows)] if ends and rows is not None else made
        else:
            taps = () if self.head.norm_output else (len(self.head.layers),)
            states = States(hidden, fused or self.head.fusion is None)
            passed = self.by_kernels.forward(tokens, queries, rows, taps, states, ends)
            logits, features, _ = passed
            assert features is not None
            made, logits = features.to(hidden.dtype), logits.clone()
        return self.head.spread(logits), made

    def chains(
        self, logits: Tensor, queries: Sequence[Query], draws: Draws, hidden: Tensor
    ) -> tuple[list[list[int]], list[Sequence[float]]]:
        """As `KernelStack.chains`, where the kernels run the head; hidden [B, hidden]: what the
        first tokens fed take."""
        assert self.by_kernels is not None
        vocab, ids = logits.shape[-1], self.head.token_ids
        return self.by_kernels.chains(logits, queries, draws, vocab, hidden, ids)

    def _by_torch(
        self,
        tokens: Sequence[int],
        hidden: Tensor,
        queries: Sequence[Query],
        rows: Sequence[int] | None,
    ) -> tuple[Tensor, Tensor]:
        flat = torch.tensor(tokens, dtype=torch.int64, device=hidden.device)
        attention = self.cache.plan(queries)
        positions = attention.rows.positions
        x, entry = self.head.enter(flat, hidden, positions)
        made = self.head.run(x, entry, positions, attention, first=self.first)
        normed = self.head.norm(made)
        picked = normed if rows is None else normed[list(rows)]
        return self.head.logits(picked), normed if self.head.norm_output else made
