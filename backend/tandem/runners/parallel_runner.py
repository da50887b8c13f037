"""A model over several ranks with the interface of `ModelRunner`, for rank 0 to call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tandem.attention.plan import Query
from tandem.models.config import ModelConfig
from tandem.models.decoder import Passed
from tandem.models.shard import Shard
from tandem.runners.commands import Allocate, Forward, Load, Move, Role
from tandem.runners.model_runner import ModelRunner, block_bytes
from tandem.runners.world import World


class ParallelRunner:
    """Tells the model's ranks what to run, and runs rank 0's part where it has one."""

    by_kernels = by_graphs = None
    """Ranks wait for each other in every layer."""

    def __init__(
        self, world: World, role: Role, folder: Path, config: ModelConfig, dtype: torch.dtype
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = world.rank.device
        self._world = world
        self._role = role
        self._ranks = world.placement.ranks(role)
        world.tell(self._ranks, Load(role, folder, config, dtype))
        self._own = world.rank.load(role, folder, config, dtype) if 0 in self._ranks else None
        world.wait_done(self._ranks)

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Makes the KV cache on all ranks of the model."""
        self._world.tell(self._ranks, Allocate(self._role, num_blocks, block_size))
        if self._own is not None:
            self._own.allocate(num_blocks, block_size)
        self._world.wait_done(self._ranks)

    def block_bytes(self, block_size: int) -> int:
        """Bytes of KV a block takes on each of the model's ranks."""
        return block_bytes(self.config, self.dtype, block_size, Shard(0, len(self._ranks)))

    def forward(
        self,
        tokens: Sequence[int],
        queries: Sequence[Query],
        rows: Sequence[int] | None = None,
        taps: Sequence[int] | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> Passed:
        """As `ModelRunner.forward`: hidden states are whole on every rank. Raises
        `EngineDeadError` when a rank is lost."""
        try:
            self._world.tell(self._ranks, Forward(self._role, tokens, queries, rows))
            if self._own is not None:
                return self._own.forward(tokens, queries, rows, taps, meanwhile)
            assert meanwhile is None  # of a target it is told
            count = len(tokens) if rows is None else len(rows)
            return Passed(self._receive(count), None)
        except (RuntimeError, OSError) as error:
            raise self._world.explain(error) from error

    def _receive(self, count: int) -> Tensor:
        """The logits [count, vocab] from the first rank of a draft with ranks of its own."""
        logits = torch.empty((count, self.config.vocab_size), device=self.device)
        if count:
            self._world.rank.link(self._role).pass_on(logits)
        return logits

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copies KV slots on all ranks of the model."""
        self._world.tell(self._ranks, Move(self._role, source, target))
        if self._own is not None:
            self._own.move(source, target)


Runner = ModelRunner | ParallelRunner
