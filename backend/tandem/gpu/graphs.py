"""Passes over few rows as CUDA graphs: a copy of what they read, and one launch.

Rows and tiles are padded to a bucket's, and each bucket is captured when it is first met (the
engine profiles passes when it starts, and so meets them then). A padded row stores its key and
value in a slot that nobody reads, and a padded tile belongs to a query without rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from tandem.attention.paged import PagedAttention, PagedKVCache
from tandem.attention.plan import Ints, Query, Rows, places
from tandem.gpu.inputs import Inputs, Part
from tandem.gpu.tree_attention import (
    FEWEST_SLOTS,
    FIELDS,
    MOST_SPLITS,
    Batch,
    KernelAttention,
    blocks_of,
    programs_of,
    records,
    seen_in,
    splits,
    tiles_of,
)
from tandem.models.decoder import Made

logger = logging.getLogger("tandem")

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
TILES = (1, 4, 16, 64, 256)  # each pair of both is a graph, so they are few
MOST_ROWS = SIZES[-1]
MOST_SEEN = 1 << 16  # of trees' rows and nodes
WITHOUT = "There is no memory for a CUDA graph: such steps go without one."
LEFT = 256 << 20  # bytes: for what passes and draws without a graph take
NOBODY = (0,) * FIELDS  # the record of a query without rows
EVERY_TEXT = MOST_SPLITS * FEWEST_SLOTS  # long enough for as many splits as there can be

Pass: TypeAlias = Callable[[Tensor, PagedAttention, Sequence[int] | None], Made]
"""From tokens [T], attention and the layers to tap."""
Given = TypeVar("Given")
Capture: TypeAlias = Callable[[Callable[[], Given]], Callable[[], Given] | None]
"""Makes what runs a function again, as `CudaGraphs` does."""


class Bucket(NamedTuple):
    """Passes that are one graph."""

    rows: int
    tiles: int
    tile_rows: int
    taps: tuple[int, ...] | None


def lacks_memory(error: RuntimeError) -> bool:
    """Whether it is the allocator's, the driver's, Triton's or cuBLAS's for want of memory."""
    return any(words in str(error) for words in ("out of memory", "ALLOC_FAILED"))


class CudaGraphs:
    """Captures what functions launch on a device. All graphs share their memory: what one gives is
    written over by the next."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Given]) -> Callable[[], Given] | None:
        """What runs it again; None where there is no memory for a graph."""
        now = torch.cuda.current_stream(self._device)
        try:
            if self._free() > LEFT:
                return self._captured(run, now)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            # where the driver had none, rather than the allocator, the capture's stream is left on
            torch.cuda.set_stream(now)
        logger.warning(WITHOUT)
        return None

    def _free(self) -> int:
        """Bytes that nobody has, not even to use them again."""
        torch.cuda.empty_cache()  # as each capture does when it begins
        return int(torch.cuda.mem_get_info(self._device)[0])

    def _captured(self, run: Callable[[], Given], now: torch.cuda.Stream) -> Callable[[], Given]:
        self._stream.wait_stream(now)
        with torch.cuda.stream(self._stream):
            run()  # kernels are compiled and libraries set up outside the graph
        now.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph,
            pool=self._pool,
            stream=self._stream,
            capture_error_mode="thread_local",  # others may use their devices meanwhile
        ):
            made = run()

        def replay() -> Given:
            graph.replay()
            return made

        return replay


class GraphedPasses:
    """A model's passes over few rows."""

    def __init__(self, cache: PagedKVCache, capture: Capture[Made]) -> None:
        device = cache.data.device
        self._cache, self._capture = cache, capture
        self._shared = cache.config.num_heads // cache.config.num_kv_heads
        self._programs = programs_of(cache.config, device)
        self._replays: dict[Bucket, Callable[[], Made] | None] = {}
        """None: there was no memory for one."""
        self._on = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        longest = -(-cache.config.max_position // cache.block_size)
        # requests may share blocks, but seldom all of them
        self._most_blocks = min(MOST_ROWS * longest, 4 * cache.spare_slot // cache.block_size)
        int64, int32 = np.dtype(np.int64), np.dtype(np.int32)
        self._inputs = Inputs(
            {
                "tokens": Part(int64, MOST_ROWS),
                "positions": Part(int64, MOST_ROWS),
                "slots": Part(int64, MOST_ROWS),
                "records": Part(int32, (MOST_ROWS + 1) * FIELDS),
                "tiles": Part(int32, 2 * MOST_ROWS),
                "seen": Part(np.dtype(np.int8), MOST_SEEN),
                "tables": Part(int32, self._most_blocks),
            },
            device,
        )

    def forward(
        self, run: Pass, tokens: Sequence[int], queries: Sequence[Query], taps: Sequence[int] | None
    ) -> Made | None:
        """A pass over T tokens; None where there are too many, or there is no memory for a graph.
        What it gives is written over by the next pass, but for what was tapped. run: the model's,
        the same one always. (Kept here it would keep the model, which has this, from going.)"""
        with self._on:
            return self._forward(run, tokens, queries, taps)

    def _forward(
        self, run: Pass, tokens: Sequence[int], queries: Sequence[Query], taps: Sequence[int] | None
    ) -> Made | None:
        count = len(tokens)
        seen, blocks = seen_in(queries), blocks_of(queries)
        tiles = tiles_of(queries, self._shared)
        if max(count, len(tiles.places)) > MOST_ROWS:
            return None
        if len(seen) > MOST_SEEN or len(blocks) > self._most_blocks:
            return None
        bucket = Bucket(
            padded(count, SIZES),
            padded(len(tiles.places), TILES),
            tiles.rows,
            None if taps is None else tuple(taps),
        )
        positions, slots = places(queries, self._cache.block_size)
        spare = np.full(bucket.rows - count, self._cache.spare_slot)
        self._inputs.copy(
            {
                "tokens": _filled(tokens, bucket.rows),
                "positions": _filled(positions, bucket.rows),
                "slots": np.concatenate([slots, spare]),
                "records": [*records(queries), NOBODY],
                "tiles": tiles.places + [(len(queries), 0)] * (bucket.tiles - len(tiles.places)),
                "seen": seen,
                "tables": blocks,
            }
        )
        if bucket not in self._replays:
            self._replays[bucket] = self._capture(lambda: self._pass(run, bucket))
        replay = self._replays[bucket]
        if replay is None:
            return None
        hidden, tapped = replay()
        return hidden[:count], None if tapped is None else tapped[:count].clone()

    def _pass(self, run: Pass, bucket: Bucket) -> Made:
        parts = self._inputs.tensors
        batch = Batch(
            parts["records"],
            parts["tables"],
            parts["seen"],
            parts["tiles"][: 2 * bucket.tiles].view(-1, 2),
            bucket.tile_rows,
            splits(self._programs, bucket.tiles, EVERY_TEXT),
        )
        rows = Rows(parts["positions"][: bucket.rows], parts["slots"][: bucket.rows])
        attend = KernelAttention(batch, self._cache.block_size)
        attention = PagedAttention(self._cache, rows, attend)
        return run(parts["tokens"][: bucket.rows], attention, bucket.taps)


def padded(count: int, sizes: Sequence[int]) -> int:
    return next(size for size in sizes if size >= count)


def _filled(values: Sequence[int] | Ints, count: int) -> Ints:
    """Zeros behind."""
    found = np.zeros(count, np.int64)
    found[: len(values)] = values
    return found
