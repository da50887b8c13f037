"""A decoder and its KV cache: runs flat batches of queries and returns logits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tandem.attention.paged import PagedKVCache, kv_block_bytes
from tandem.attention.plan import Query
from tandem.models.config import ModelConfig
from tandem.models.loader import load_decoder


class ModelRunner:
    """One model on one device. `allocate` comes before the first `forward`."""

    def __init__(
        self, folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self.model = load_decoder(folder, config, dtype, device)

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Makes the KV cache."""
        self.cache = PagedKVCache(self.config, num_blocks, block_size, self.dtype, self.device)

    def block_bytes(self, block_size: int) -> int:
        """Bytes of KV a block takes."""
        return kv_block_bytes(self.config, self.dtype, block_size)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Sequence[int] | Tensor,
        queries: Sequence[Query],
        rows: Sequence[int] | None = None,
    ) -> Tensor:
        """Runs T tokens laid out as `queries`; float32 logits [R, vocab] of `rows` (None: all)."""
        flat = torch.as_tensor(tokens, dtype=torch.int64, device=self.device)
        attention = self.cache.plan(queries)
        hidden = self.model(flat, attention.layout.positions, attention)
        if rows is not None:
            picked = torch.tensor(rows, dtype=torch.int64, device=self.device)
            hidden = hidden.index_select(0, picked)
        return self.model.logits(hidden)
