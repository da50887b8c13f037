"""The KV cache of one model and attention over it: by Triton's kernels on a GPU, elsewhere by
torch's scaled_dot_product_attention.

Query heads that share a KV head are folded into the query rows, so every key and value of a
request is read once for all its heads and all nodes of its draft tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tandem.attention.plan import Group, Query, Rows, plan_groups, plan_rows
from tandem.cpu.memory import zeros
from tandem.models.config import ModelConfig


def kv_block_bytes(config: ModelConfig, dtype: torch.dtype, block_size: int) -> int:
    """Bytes a block takes in one model's cache."""
    return config.num_layers * config.kv_width * block_size * dtype.itemsize


GROUP = 16
"""Slots that the CPU kernels keep together: cpu/cache.h's kBlock."""


class PagedKVCache:
    """Keys and values, [layers, slots, 2 * kv_heads * head_dim]; slot = block * size + offset.

    Where the CPU kernels run the model, each `GROUP` of slots has its numbers in their order:
    cpu/cache.h."""

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config = config
        self.block_size = block_size
        self.heads_per_kv = config.num_heads // config.num_kv_heads
        self.spare_slot = num_blocks * block_size
        """Behind all blocks; what is stored there is not read."""
        # Zeros, not empty: a masked slot is multiplied by 0, which a stray NaN would survive.
        slots = (self.spare_slot // GROUP + 1) * GROUP
        shape = (config.num_layers, slots, config.kv_width)
        self.by_triton = device.type == "cuda"
        self.data = (
            torch.zeros(shape, dtype=dtype, device=device)
            if self.by_triton
            else zeros(shape, dtype)
        )

    def plan(self, queries: Sequence[Query]) -> PagedAttention:
        """Works out one forward pass over `queries`."""
        data, size, shared = self.data, self.block_size, self.heads_per_kv
        rows = plan_rows(queries, size, data.device)
        if self.by_triton:
            # Triton comes with GPUs alone
            from tandem.gpu.tree_attention import KernelAttention, plan, programs_of

            batch = plan(queries, shared, programs_of(self.config, data.device), data.device)
            return PagedAttention(self, rows, KernelAttention(batch, size))
        groups = plan_groups(queries, size, shared, data.dtype, data.device)
        return PagedAttention(self, rows, GroupedAttention(self.config, groups))

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copies slots to other slots in all layers: a tree's accepted path moves together. (Not
        where the kernels run the model: they have their own.)"""
        device = self.data.device
        kept = self.data.index_select(1, torch.tensor(source, device=device))
        self.data.index_copy_(1, torch.tensor(target, device=device), kept)


class PagedAttention:
    """Attention of one forward pass: called once a layer."""

    def __init__(
        self, cache: PagedKVCache, rows: Rows, attend: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        """attend: from query [T, heads, head_dim] and a layer's slots to [T, heads * head_dim]."""
        self.cache = cache
        self.rows = rows
        self.attend = attend
        """Over slots that are stored already."""

    def __call__(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        """Stores key_value [T, kv_width]; query [T, heads, head_dim] to [T, heads * head_dim]."""
        data = self.cache.data[layer]
        data.index_copy_(0, self.rows.slots, key_value)
        return self.attend(query, data)


class GroupedAttention:
    """By torch, group by group."""

    def __init__(self, config: ModelConfig, groups: Sequence[Group]) -> None:
        self._config = config
        self._groups = groups

    def __call__(self, query: Tensor, data: Tensor) -> Tensor:
        parts = [self._attend(data, group, query) for group in self._groups]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend(self, data: Tensor, group: Group, query: Tensor) -> Tensor:
        kv_heads, dim = self._config.num_kv_heads, self._config.head_dim
        shared = self._config.num_heads // kv_heads
        padded = query[group.rows] if group.pad is None else query.index_select(0, group.pad)
        stored = data[group.kv] if isinstance(group.kv, slice) else data.index_select(0, group.kv)
        keys, values = stored.view(group.size, -1, 2, kv_heads, dim).permute(2, 0, 3, 1, 4)
        folded = padded.reshape(group.size, group.query_len, kv_heads, shared, dim)
        folded = folded.transpose(1, 2).reshape(group.size, kv_heads, -1, dim)
        mixed = F.scaled_dot_product_attention(folded, keys, values, attn_mask=group.mask)
        mixed = mixed.view(group.size, kv_heads, group.query_len, shared, dim)
        out = mixed.transpose(1, 2).reshape(group.size * group.query_len, -1)
        return out if group.unpad is None else out.index_select(0, group.unpad)
