"""What every rank has: its process group, its parts of the models. Rank 0 has one too."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tandem.models.config import ModelConfig
from tandem.models.shard import Shard
from tandem.runners.collectives import join
from tandem.runners.commands import Role
from tandem.runners.model_runner import ModelRunner
from tandem.runners.placement import Placement

COLLECTIVE_TIMEOUT = timedelta(seconds=120)  # a lost rank is noticed by its silence long before


class Rank:
    """Membership in the groups of target and draft."""

    def __init__(self, placement: Placement, rank: int, store: Path) -> None:
        self.placement = placement
        self.rank = rank
        self.device = placement.devices[rank]
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # all ranks are on this host
        dist.init_process_group(
            "gloo" if self.device.type == "cpu" else "nccl",
            init_method=f"file://{store}",
            rank=rank,
            world_size=placement.world_size,
            timeout=COLLECTIVE_TIMEOUT,
        )
        self._groups = {
            ranks: dist.new_group(list(ranks))
            for ranks in sorted({placement.target, placement.draft})
            if len(ranks) > 1  # every rank takes part in making every group
        }

    def load(
        self, role: Role, folder: Path, config: ModelConfig, dtype: torch.dtype
    ) -> ModelRunner:
        """This rank's part of a model, joined to the others'."""
        ranks = self.placement.ranks(role)
        shard = Shard(ranks.index(self.rank), len(ranks))
        runner = ModelRunner(folder, config, dtype, self.device, shard)
        if shard.size > 1:
            join(runner.model, shard, self._groups[ranks], config.vocab_size)
        return runner

    @staticmethod
    def leave() -> None:
        """Ends the membership."""
        dist.destroy_process_group()


def pin(cores: tuple[int, ...]) -> None:
    """Keeps this thread, and those it starts, on `cores`."""
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))
