"""Attention of chunks, decoded tokens and draft trees over the paged KV cache, in Triton.

A program takes one KV head and a tile of a query's rows: the query heads that share the KV head and
all nodes of the draft are folded into one tile, so each key and value of the request is read once
for all of them. Long texts are split over programs, whose parts are then joined by their softmax
denominators (flash decoding, Dao et al. 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from tandem.attention.plan import Query, ancestors
from tandem.models.config import ModelConfig

FEWEST_ROWS = 16  # of a tile: what the tensor cores take
MOST_ROWS = 64
FEWEST_SLOTS = 32
MOST_SLOTS = 64
WIDE = 256  # bytes of a key, from which on fewer slots fit a processor's memory
FEWEST_LANES = 16
MOST_SPLITS = 16
FIELDS = 7  # of a query's record, as `records` orders them


class Batch(NamedTuple):
    """One forward pass, on the device."""

    records: Tensor
    """[queries, FIELDS] int32."""
    tables: Tensor
    """[all queries' blocks] int32."""
    seen: Tensor
    """[all trees' rows * their nodes] int8: which nodes a row sees."""
    tiles: Tensor
    """[tiles, 2] int32: query, and the place of the tile among its tiles."""
    rows: int
    """Of a tile."""
    splits: int
    """Programs that share a text."""


class Tiles(NamedTuple):
    """How a pass is cut up."""

    places: list[tuple[int, int]]
    """Query, and the place of the tile among its tiles."""
    rows: int
    """Of a tile."""


def plan(queries: Sequence[Query], heads_per_kv: int, programs: int, device: torch.device) -> Batch:
    """Works out a pass. programs: how many should run at once for each KV head."""
    tiles = tiles_of(queries, heads_per_kv)
    longest = max(query.end for query in queries)
    return Batch(
        _ints(records(queries), device),
        _ints(blocks_of(queries), device),
        torch.from_numpy(seen_in(queries)).to(device, non_blocking=True),
        _ints(tiles.places, device),
        tiles.rows,
        splits(programs, len(tiles.places), longest),
    )


def tiles_of(queries: Sequence[Query], heads_per_kv: int) -> Tiles:
    """Tiles of one size for all queries."""
    folded = [query.length * heads_per_kv for query in queries]
    rows = tile_rows(max(folded))
    places = [(place, at) for place, n in enumerate(folded) for at in range(-(-n // rows))]
    return Tiles(places, rows)


def tile_rows(most: int) -> int:
    """Rows of a tile for queries of at most so many, heads that share keys counted apart."""
    return min(MOST_ROWS, max(FEWEST_ROWS, triton.next_power_of_2(most)))


def splits(programs: int, tiles: int, longest: int) -> int:
    """Programs that share a text. Few values: each is compiled."""
    wanted = min(-(-programs // tiles), -(-longest // FEWEST_SLOTS))
    return min(MOST_SPLITS, triton.next_power_of_2(wanted))


def seen_in(queries: Sequence[Query]) -> NDArray[np.int8]:
    """Of all trees, which nodes their rows see."""
    trees = [
        ancestors(query.parents)[query.stored :].reshape(-1)
        for query in queries
        if query.parents is not None
    ]
    seen = np.concatenate(trees) if trees else np.zeros(1, np.bool_)
    return seen.astype(np.int8)


def blocks_of(queries: Sequence[Query]) -> list[int]:
    """All queries' block tables, one after the other."""
    return [block for query in queries for block in query.blocks]


def records(queries: Sequence[Query]) -> list[tuple[int, ...]]:
    """First row, rows, cached tokens before them, end, first block, first of `seen`
    and nodes of the tree (0: a chain)."""
    first_rows = accumulate((query.length for query in queries), initial=0)
    first_blocks = accumulate((len(query.blocks) for query in queries), initial=0)
    found: list[tuple[int, ...]] = []
    seen = 0
    for query, row, block in zip(queries, first_rows, first_blocks, strict=False):
        if query.parents is None:
            start, tree, nodes = query.start + query.stored, 0, 0
        else:
            start, tree, nodes = query.start, seen, len(query.parents)
            seen += query.length * nodes
        found.append((row, query.length, start, query.end, block, tree, nodes))
    return found


def _ints(values: Sequence[object], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32).to(device, non_blocking=True)


class KernelAttention:
    """Attention of one forward pass over a layer's slots."""

    def __init__(self, batch: Batch, block_size: int) -> None:
        self._batch = batch
        self._block_size = block_size

    def __call__(self, query: Tensor, data: Tensor) -> Tensor:
        return attend(query, data, self._batch, self._block_size)


def programs_of(config: ModelConfig, device: torch.device) -> int:
    """Programs that should run at once for each KV head."""
    if device.type != "cuda":
        return 1
    processors: int = torch.cuda.get_device_properties(device).multi_processor_count
    return -(-processors // config.num_kv_heads)


def attend(query: Tensor, cache: Tensor, batch: Batch, block_size: int) -> Tensor:
    """query [T, heads, dim], cache [slots, 2 * kv_heads * dim] of one layer, keys before values, in
    which the new tokens are stored already; returns [T, heads * dim]."""
    count, heads, dim = query.shape
    kv_heads = cache.shape[1] // (2 * dim)
    out = torch.empty((count, heads, dim), dtype=query.dtype, device=query.device)
    parts = torch.empty((batch.splits, count, heads, dim), device=query.device)
    weights = torch.empty((batch.splits, count, heads), device=query.device)
    padded = max(FEWEST_LANES, triton.next_power_of_2(dim))
    with torch.cuda.device_of(query):  # Triton launches on the current one
        grid = (len(batch.tiles), kv_heads, batch.splits)
        _attend[grid](
            query,
            cache,
            parts,
            weights,
            batch.records,
            batch.tables,
            batch.seen,
            batch.tiles,
            dim**-0.5,
            count,
            query.stride(0),
            KV_HEADS=kv_heads,
            SHARED=heads // kv_heads,
            DIM=dim,
            PADDED=padded,
            BLOCK=block_size,
            ROWS=batch.rows,
            SLOTS=FEWEST_SLOTS if padded * query.itemsize > WIDE else MOST_SLOTS,
            SPLITS=batch.splits,
            FIELDS=FIELDS,
        )
        _join[(count, heads)](
            parts,
            weights,
            out,
            count,
            HEADS=heads,
            DIM=dim,
            PADDED=padded,
            SPLITS=batch.splits,
            PADDED_SPLITS=triton.next_power_of_2(batch.splits),
        )
    return out.view(count, heads * dim)


@triton.jit(
    do_not_specialize=["count"],
    do_not_specialize_on_alignment=["records"],  # of a round's passes one lies behind the other
)
def _attend(
    query,
    cache,
    parts,
    weights,
    records,
    tables,
    seen,
    tiles,
    scale,
    count,
    stride,
    KV_HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    SPLITS: tl.constexpr,
    FIELDS: tl.constexpr,
):
    """One tile over one part of its text: the mixed values, and the logarithm of their weight."""
    item, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    record = records + FIELDS * tl.load(tiles + 2 * item)
    first, length = tl.load(record), tl.load(record + 1)
    start, end = tl.load(record + 2), tl.load(record + 3)
    table, tree, nodes = tl.load(record + 4), tl.load(record + 5), tl.load(record + 6)

    before = tl.load(tiles + 2 * item + 1) * ROWS
    end = tl.where(before < length * SHARED, end, 0)  # a tile of padding reads nothing
    folded = before + tl.arange(0, ROWS)
    row, head = folded // SHARED, kv_head * SHARED + folded % SHARED
    real = row < length
    lanes = tl.arange(0, PADDED)
    wide = lanes < DIM
    places = ((first + row) * (KV_HEADS * SHARED) + head).to(tl.int64)
    asked = (first + row).to(tl.int64) * stride + head * DIM
    q = tl.load(query + asked[:, None] + lanes[None], mask=real[:, None] & wide[None], other=0.0)

    # what comes before is seen by all; of a chain each row sees those up to itself too
    last = tl.where(nodes > 0, -1, row)
    share = tl.cdiv(tl.cdiv(end, SPLITS), SLOTS) * SLOTS
    best = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, PADDED), tl.float32)
    for at in range(split * share, tl.minimum((split + 1) * share, end), SLOTS):
        place = at + tl.arange(0, SLOTS)
        stored = place < end
        block = tl.load(tables + table + place // BLOCK, mask=stored, other=0)
        slot = (block * BLOCK + place % BLOCK).to(tl.int64)
        address = (slot * 2 * KV_HEADS + kv_head) * DIM
        known = stored[:, None] & wide[None]
        keys = tl.load(cache + address[:, None] + lanes[None], mask=known, other=0.0)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale

        node = place - start
        visible = stored[None] & (node[None] <= last[:, None])
        if (nodes > 0) & (at + SLOTS > start):
            is_node = real[:, None] & (node[None] >= 0) & (node[None] < nodes)
            above = tl.load(seen + tree + row[:, None] * nodes + node[None], mask=is_node, other=0)
            visible = visible | (above > 0)
        scores = tl.where(visible, scores, -float("inf"))

        higher = tl.maximum(best, tl.max(scores, 1))
        # a row that has seen nothing yet must not subtract infinity from infinity
        shift = tl.where(higher == -float("inf"), 0.0, higher)
        faded = tl.exp(best - shift)
        chances = tl.exp(scores - shift[:, None])
        values = tl.load(
            cache + (address + KV_HEADS * DIM)[:, None] + lanes[None], mask=known, other=0.0
        )
        total = total * faded + tl.sum(chances, 1)
        mixed = mixed * faded[:, None]
        mixed += tl.dot(chances.to(values.dtype), values, input_precision="ieee")
        best = higher

    kept = real & (total > 0)
    mixed = tl.where(kept[:, None], mixed / tl.where(kept, total, 1.0)[:, None], 0.0)
    weight = tl.where(kept, best + tl.log(tl.where(kept, total, 1.0)), -float("inf"))
    out = split.to(tl.int64) * count * KV_HEADS * SHARED + places
    tl.store(weights + out, weight, mask=real)
    tl.store(parts + out[:, None] * DIM + lanes[None], mixed, mask=real[:, None] & wide[None])


@triton.jit(do_not_specialize=["count"])
def _join(
    parts,
    weights,
    out,
    count,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
):
    """The parts of one row and head together."""
    place = (tl.program_id(0) * HEADS + tl.program_id(1)).to(tl.int64)
    split, lanes = tl.arange(0, PADDED_SPLITS), tl.arange(0, PADDED)
    at = split.to(tl.int64) * count * HEADS + place
    there, wide = split < SPLITS, lanes < DIM
    weight = tl.load(weights + at, mask=there, other=-float("inf"))
    chances = tl.exp(weight - tl.max(weight, 0))
    chances = chances / tl.sum(chances, 0)
    values = tl.load(
        parts + at[:, None] * DIM + lanes[None], mask=there[:, None] & wide[None], other=0.0
    )
    mixed = tl.sum(values * chances[:, None], 0)
    tl.store(out + place * DIM + lanes, mixed.to(out.dtype.element_ty), mask=wide)
