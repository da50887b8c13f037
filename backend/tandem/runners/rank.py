"""What every rank has: its place in the groups, its parts of the models. Rank 0 has one too."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _abort_process_group

from tandem.models.config import ModelConfig
from tandem.models.shard import Shard
from tandem.runners.collectives import join
from tandem.runners.commands import Role, Room
from tandem.runners.groups import Group, NcclGroup, SharedMemoryGroup
from tandem.runners.model_runner import ModelRunner
from tandem.runners.placement import Placement


class Rank:
    """Membership in the groups of target and draft, and of those two's first ranks."""

    def __init__(
        self, placement: Placement, rank: int, folder: Path, lost: Callable[[], bool]
    ) -> None:
        """folder: where the files are that ranks share. lost: whether a rank is known to be."""
        self.placement = placement
        self.rank = rank
        self.device = placement.devices[rank]
        if self.device.type == "cuda":
            self._groups = self._nccl_groups(folder)
        else:
            self._groups = self._shared_memory_groups(folder, lost)

    def _nccl_groups(self, folder: Path) -> dict[tuple[int, ...], Group]:
        torch.cuda.set_device(self.device)
        dist.init_process_group(
            "nccl",
            init_method=f"file://{folder / 'store'}",
            rank=self.rank,
            world_size=self.placement.world_size,
            device_id=self.device,
        )
        made = {ranks: dist.new_group(list(ranks)) for ranks in self.placement.groups()}
        return {ranks: NcclGroup(group) for ranks, group in made.items() if self.rank in ranks}

    def _shared_memory_groups(
        self, folder: Path, lost: Callable[[], bool]
    ) -> dict[tuple[int, ...], Group]:
        return {
            ranks: SharedMemoryGroup(
                group_file(folder, ranks), ranks.index(self.rank), len(ranks), lost
            )
            for ranks in self.placement.groups()
            if self.rank in ranks
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

    def link(self, role: Role) -> Group:
        """Between rank 0 and the first rank of a model that rank 0 has no part in."""
        return self._groups[self.placement.link(role)]

    @staticmethod
    def leave() -> None:
        """Ends the membership, whether or not the others live: NCCL's own end waits for them."""
        if dist.is_initialized():
            _abort_process_group()


def room_of(device: torch.device) -> Room | None:
    """What a GPU has left, whoever else uses it; None: these are CPU cores."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()  # of what loading had for a moment
    return Room(*torch.cuda.mem_get_info(device))


def group_file(folder: Path, ranks: tuple[int, ...]) -> Path:
    """The file that a group's ranks map."""
    return folder / "-".join(map(str, ranks))


def pin(placement: Placement, rank: int) -> None:
    """Keeps this thread, and those it starts, on a rank's cores."""
    os.sched_setaffinity(0, placement.cores_of(rank))
    torch.set_num_threads(placement.threads_of(rank))
