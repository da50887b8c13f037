"""What one forward pass reads and writes in the paged KV cache, worked out once a step.

A batch is a list of queries. A query is a run of new tokens of one request: a prefill chunk, one
decoded token, or a draft's nodes. Nodes of a tree see the cached prefix and their own ancestors,
nothing else. Neighbours of similar length are grouped: they attend in one call, padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
MOST_PADDING = 2  # padded rows for one real row


class Query(NamedTuple):
    """New tokens of one request; they are stored right behind its cached ones."""

    blocks: Sequence[int]
    """The request's block table; it covers start + length slots."""
    start: int
    """Cached tokens before the new ones."""
    length: int
    parents: Sequence[int] | None = None
    """Parent of each node of a tree (-1: the cached prefix), those stored before first; None: a
    chain."""
    stored: int = 0
    """Nodes of the tree that earlier passes have stored behind the cached tokens."""

    @property
    def end(self) -> int:
        """Slots in use behind this pass."""
        return self.start + self.stored + self.length


class Group(NamedTuple):
    """Queries that attend together: B of them, padded to Q rows, over L cached slots."""

    rows: slice
    """Their rows in the flat batch."""
    size: int
    """B."""
    query_len: int
    """Q."""
    pad: Tensor | None
    """[B * Q] flat row for each padded place; None where nothing is padded."""
    unpad: Tensor | None
    """Padded place of each flat row, the inverse of `pad`."""
    kv: slice | Tensor
    """Cache slots to read: a run (B = 1) or [B * L] indices."""
    mask: Tensor | None
    """[B, 1, Q * heads a KV head, L], 0 or -inf; None: everything is visible."""


class Rows(NamedTuple):
    """The whole batch: T rows, the queries' tokens in the order given."""

    positions: Tensor
    """[T] position of each row in its text (a node's depth, not its slot, counts)."""
    slots: Tensor
    """[T] cache slot that each row is written to."""


def plan_rows(queries: Sequence[Query], block_size: int, device: torch.device) -> Rows:
    """Where a batch's rows are in their texts and in the cache."""
    positions, slots = places(queries, block_size)
    return Rows(_to(positions, device), _to(slots, device))


def places(queries: Sequence[Query], block_size: int) -> tuple[Ints, Ints]:
    """[T] positions of a batch's rows in their texts, and [T] their slots in the cache."""
    positions = np.concatenate([query.start + _depths(query) for query in queries])
    return positions, np.concatenate([_slots(query, block_size) for query in queries])


def plan_groups(
    queries: Sequence[Query],
    block_size: int,
    heads_per_kv: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[Group]:
    """Who attends with whom."""
    planned: list[Group] = []
    first = 0
    for group in _grouped(queries):
        rows = slice(first, first + sum(query.length for query in group))
        planned.append(_plan_group(group, rows, block_size, heads_per_kv, dtype, device))
        first = rows.stop
    return planned


def _grouped(queries: Sequence[Query]) -> list[list[Query]]:
    """Neighbours go together as long as padding at most doubles the rows."""
    groups: list[list[Query]] = []
    rows = longest = 0
    for query in queries:
        rows, longest = rows + query.length, max(longest, query.length)
        if groups and longest * (len(groups[-1]) + 1) <= MOST_PADDING * rows:
            groups[-1].append(query)
        else:
            groups.append([query])
            rows = longest = query.length
    return groups


def _to(array: Ints, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)


def _depths(query: Query) -> Ints:
    """Each row's distance from the cached prefix: 0, 1, 2 … in a chain."""
    if query.parents is None:
        return np.arange(query.length)
    depths = np.zeros(len(query.parents), np.int64)
    for node, parent in enumerate(query.parents):
        depths[node] = 0 if parent < 0 else depths[parent] + 1
    return depths[query.stored :]


def _slots(query: Query, block_size: int) -> Ints:
    start = query.start + query.stored
    first, last = start // block_size, (query.end - 1) // block_size
    base = np.asarray(query.blocks[first : last + 1], np.int64) * block_size
    offsets = start % block_size + np.arange(query.length)
    return base[offsets // block_size] + offsets % block_size


def _plan_group(
    queries: Sequence[Query],
    rows: slice,
    block_size: int,
    heads_per_kv: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Group:
    query_len = max(query.length for query in queries)
    kv_len = max(query.end for query in queries)
    pad, unpad = _padding([query.length for query in queries], rows.start, query_len)
    mask = _mask(queries, query_len, kv_len)
    return Group(
        rows=rows,
        size=len(queries),
        query_len=query_len,
        pad=None if pad is None else _to(pad, device),
        unpad=None if unpad is None else _to(unpad, device),
        kv=_kv_slots(queries, kv_len, block_size, device),
        mask=None if mask is None else _additive(mask, heads_per_kv, dtype, device),
    )


def _padding(lengths: list[int], first: int, query_len: int) -> tuple[Ints | None, Ints | None]:
    if min(lengths) == query_len:
        return None, None
    starts = first + np.cumsum([0, *lengths[:-1]])
    columns = np.arange(query_len)
    used = columns[None] < np.asarray(lengths)[:, None]
    pad = np.where(used, starts[:, None] + columns[None], first)
    return pad.reshape(-1), np.flatnonzero(used)


def _kv_slots(
    queries: Sequence[Query], kv_len: int, block_size: int, device: torch.device
) -> slice | Tensor:
    """Slots to read. One request whose blocks lie in a row is read in place, without a copy."""
    num_blocks = -(-kv_len // block_size)
    if len(queries) == 1:
        blocks = queries[0].blocks[:num_blocks]
        if all(b == blocks[0] + i for i, b in enumerate(blocks)):
            return slice(blocks[0] * block_size, blocks[0] * block_size + kv_len)
    table = np.zeros((len(queries), num_blocks), np.int64)
    for row, query in zip(table, queries, strict=True):
        used = query.blocks[:num_blocks]
        row[: len(used)] = used
    slots = table[:, :, None] * block_size + np.arange(block_size)
    return _to(
        np.ascontiguousarray(slots.reshape(len(queries), -1)[:, :kv_len].reshape(-1)), device
    )


def _mask(queries: Sequence[Query], query_len: int, kv_len: int) -> NDArray[np.bool_] | None:
    """[B, Q, L] which slots each row sees; None when that is all of them."""
    if len(queries) == 1 and query_len == 1 and queries[0].parents is None:
        return None
    starts = np.fromiter((query.start for query in queries), np.int64, len(queries))
    last_seen = starts[:, None] + np.arange(query_len)
    mask = np.arange(kv_len) <= last_seen[:, :, None]
    for row, query in zip(mask, queries, strict=True):
        if query.parents is not None:
            row[: query.length, query.start : query.end] = ancestors(query.parents)[query.stored :]
    return mask


def ancestors(parents: Sequence[int]) -> NDArray[np.bool_]:
    """[N, N]: node i sees node j, that is j is i or above it. Parents precede their children."""
    seen = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    return seen


def _additive(
    mask: NDArray[np.bool_], heads_per_kv: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Query heads that share a KV head are folded into the rows: [B, 1, Q * heads_per_kv, L]."""
    hidden = torch.from_numpy(np.repeat(~mask, heads_per_kv, axis=1)).to(device)[:, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
