"""A decoder and its KV cache: runs flat batches of queries and returns logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tandem.attention.paged import PagedAttention, PagedKVCache, kv_block_bytes
from tandem.attention.plan import Query
from tandem.cpu.decoder import KernelStack
from tandem.cpu.library import has_kernels
from tandem.models.config import ModelConfig
from tandem.models.decoder import Made, Passed
from tandem.models.loader import load_decoder
from tandem.models.shard import WHOLE, Shard, local_config

if TYPE_CHECKING:
    from tandem.gpu.graphs import GraphedPasses


def block_bytes(config: ModelConfig, dtype: torch.dtype, block_size: int, shard: Shard) -> int:
    """Bytes of KV a block takes on one of the model's ranks."""
    return kv_block_bytes(local_config(config, shard), dtype, block_size)


class ModelRunner:
    """One model, or a rank's part of it, on one device. `allocate` comes before `forward`."""

    def __init__(
        self,
        folder: Path,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        shard: Shard = WHOLE,
        eights: bool = False,
    ) -> None:
        """eights: as in `use_kernels`."""
        self.config = config
        self.dtype = dtype
        self.device = device
        self.shard = shard
        self.model = load_decoder(folder, config, dtype, device, shard, eights)
        self.by_kernels: KernelStack | None = None
        self.by_graphs: GraphedPasses | None = None

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Makes the KV cache."""
        local = local_config(self.config, self.shard)
        self.cache = PagedKVCache(local, num_blocks, block_size, self.dtype, self.device)
        if self.shard == WHOLE and has_kernels(self.device, self.dtype, self.config.head_dim):
            self.by_kernels = KernelStack(self.model, self.cache)
        if self.shard == WHOLE and self.cache.by_triton:
            # Triton comes with GPUs alone
            from tandem.gpu.graphs import CudaGraphs, GraphedPasses

            self.by_graphs = GraphedPasses(self.cache, CudaGraphs(self.device))

    def block_bytes(self, block_size: int) -> int:
        """Bytes of KV a block takes."""
        return block_bytes(self.config, self.dtype, block_size, self.shard)

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copies KV slots to other slots in all layers."""
        (self.by_kernels or self.cache).move(source, target)

    def forward(
        self,
        tokens: Sequence[int] | Tensor,
        queries: Sequence[Query],
        rows: Sequence[int] | None = None,
        taps: Sequence[int] | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> Passed:
        """Runs T tokens laid out as `queries`; the logits of `rows` (None: all). With `taps` the
        hidden states [T, width] too: the inputs of these layers side by side, or without any the
        last layer's output after the norm. meanwhile: what this thread can do beside it."""
        if self.by_kernels is not None:
            return self.by_kernels.forward(tokens, queries, rows, taps, meanwhile=meanwhile)
        with torch.inference_mode():
            # before the pass: a GPU would be waited for behind it
            picked = None
            if rows is not None and not _all_in_order(rows, len(tokens)):
                picked = torch.tensor(rows, dtype=torch.int64, device=self.device)
            hidden, features = self._hidden(tokens, queries, taps)
            if picked is not None:
                hidden = hidden.index_select(0, picked)
            logits = self.model.logits(hidden)
        if meanwhile is not None:  # a GPU is at work
            meanwhile()
        return Passed(logits, features)

    def _hidden(
        self,
        tokens: Sequence[int] | Tensor,
        queries: Sequence[Query],
        taps: Sequence[int] | None,
    ) -> Made:
        if self.by_graphs is not None:
            found = self.by_graphs.forward(self.by_layers, _numbers(tokens), queries, taps)
            if found is not None:
                return found
        flat = torch.as_tensor(tokens, dtype=torch.int64, device=self.device)
        return self.by_layers(flat, self.cache.plan(queries), taps)

    def by_layers(
        self, tokens: Tensor, attention: PagedAttention, taps: Sequence[int] | None
    ) -> Made:
        """Final hidden states [T, hidden], after the last norm, and what was tapped."""
        inputs: list[Tensor] = []

        def keep(layer: int, x: Tensor) -> None:
            if taps and layer in taps:
                inputs.append(x)

        hidden = self.model(tokens, attention.rows.positions, attention, keep if taps else None)
        return hidden, None if taps is None else torch.cat(inputs, -1) if taps else hidden


def _all_in_order(rows: Sequence[int], count: int) -> bool:
    return len(rows) == count and all(map(eq, rows, range(count)))


def _numbers(tokens: Sequence[int] | Tensor) -> Sequence[int]:
    if isinstance(tokens, Tensor):
        found: list[int] = tokens.tolist()
        return found
    return tokens
