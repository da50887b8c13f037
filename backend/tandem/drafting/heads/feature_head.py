"""The mathematics of a head that reads the target's hidden states: EAGLE and MTP.

Each format says what becomes of tokens and hidden states before the first layer; what follows is a
stack of decoder layers like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tandem.attention.paged import PagedKVCache
from tandem.attention.plan import Query
from tandem.cpu.decoder import KernelStack
from tandem.cpu.library import has_kernels
from tandem.models.decoder import Stack


class Mask(NamedTuple):
    """Stands for a token yet to be guessed (P-EAGLE)."""

    token: int
    features: Tensor
    """[width] in the place of the target's hidden states."""


class FeatureHead(Stack):
    """The defaults are those of a head that takes the target's last hidden state as it is."""

    embed: nn.Module
    taps: tuple[int, ...] = ()
    """As in `Proposer`."""
    norm_output = True
    """Whether what stands for the hidden state in the next step has passed the last norm."""

    def fuse(self, features: Tensor) -> Tensor:
        """The target's hidden states [T, width] as the head takes them [T, hidden]."""
        return features

    def enter(
        self, tokens: Tensor, hidden: Tensor, beginnings: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """tokens [T] and hidden [T, hidden] to the first layer's input [T, hidden] and what its
        attention reads of it. beginnings: rows at position 0."""
        raise NotImplementedError

    def spread(self, logits: Tensor) -> Tensor:
        """Logits [R, own vocabulary] over the target's [R, V]."""
        return logits


class HeadRunner:
    """A head over a KV cache: runs flat batches of queries, as a `ModelRunner` does."""

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
    ) -> tuple[Tensor, Tensor]:
        """tokens [T], hidden [T, hidden] to float32 logits [R, V] of `rows` (None: all) and what
        stands for the hidden states in the next step [T, hidden]."""
        flat = torch.tensor(tokens, dtype=torch.int64, device=hidden.device)
        x, entry = self.head.enter(flat, hidden, _beginnings(queries))
        if self.by_kernels is None:
            logits, made = self._by_torch(x, entry, queries, rows)
        else:
            taps = () if self.head.norm_output else (len(self.head.layers),)
            logits, made = self.by_kernels.forward_states(x, entry, queries, rows, taps)
        return self.head.spread(logits), made.to(hidden.dtype)

    def _by_torch(
        self, x: Tensor, entry: Tensor, queries: Sequence[Query], rows: Sequence[int] | None
    ) -> tuple[Tensor, Tensor]:
        attention = self.cache.plan(queries)
        made = self.head.run(x, entry, attention.layout.positions, attention, first=self.first)
        normed = self.head.norm(made)
        picked = normed if rows is None else normed[list(rows)]
        return self.head.logits(picked), normed if self.head.norm_output else made


def _beginnings(queries: Sequence[Query]) -> list[int]:
    """Rows at position 0: a text's first."""
    found, row = list[int](), 0
    for query in queries:
        if query.start + query.stored == 0:
            found.append(row)
        row += query.length
    return found
