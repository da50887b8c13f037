"""Which process, device and cores the ranks of target and draft get.

Two placements. *Shared*: the draft runs on the first d of the target's ranks, each device holds a
part of both. *Dedicated* (`draft_devices` is set): the draft has ranks of its own. In both, rank 0
belongs to the target; it schedules, samples and verifies, once for all.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import torch

from tandem.config import EngineConfig
from tandem.control_groups import cpu_quota
from tandem.errors import ConfigError


class Placement(NamedTuple):
    """Ranks are numbered from 0 over all processes."""

    target: tuple[int, ...]
    draft: tuple[int, ...]
    devices: tuple[torch.device, ...]
    """Of each rank."""
    cores: tuple[int, ...]
    """CPU cores that the ranks share."""
    quota: int | None = None
    """Of them, how many may be kept busy at the same time; None: all."""

    def ranks(self, role: str) -> tuple[int, ...]:
        """Of the target or the draft."""
        return self.target if role == "target" else self.draft

    def link(self, role: str) -> tuple[int, ...]:
        """Rank 0 and the first rank of a model."""
        return (0, self.ranks(role)[0])

    def groups(self) -> list[tuple[int, ...]]:
        """Which ranks exchange tensors, in the order in which their groups are made."""
        wanted = {self.target, self.draft}
        if self.draft and 0 not in self.draft:
            wanted.add(self.link("draft"))
        return sorted(ranks for ranks in wanted if len(ranks) > 1)

    @property
    def world_size(self) -> int:
        return len(self.devices)

    def cores_of(self, rank: int) -> tuple[int, ...]:
        """A rank's own share of the cores, so that ranks do not fight."""
        count, world = len(self.cores), self.world_size
        if count < world:
            return (self.cores[rank % count],)
        return self.cores[rank * count // world : (rank + 1) * count // world]

    def threads_of(self, rank: int) -> int:
        """CPU threads that a rank computes with. By a quota they are fewer than its cores, all of
        which they may use nevertheless: others on this machine would be kept to the same ones."""
        most = len(self.cores_of(rank))
        return most if self.quota is None else min(most, max(1, self.quota // self.world_size))


def place(config: EngineConfig) -> Placement:
    """Raises `ConfigError` where devices are missing."""
    t, d = config.tensor_parallel_size, config.draft_tensor_parallel_size
    devices = choose_devices("devices", config.devices, t)
    target = tuple(range(t))
    cores = tuple(sorted(os.sched_getaffinity(0))[: config.num_threads])
    quota = cpu_quota() if config.num_threads is None else None
    if config.method != "draft_model":
        return Placement(target, (), devices, cores, quota)
    if config.draft_devices is not None:
        own = choose_devices("draft_devices", config.draft_devices, d)
        if len({device.type for device in devices + own}) > 1:
            raise ConfigError(
                "devices and draft_devices differ in kind: use CPUs or GPUs for both."
            )
        if devices[0].type == "cuda" and set(devices) & set(own):
            raise ConfigError(
                "devices and draft_devices name the same GPU: give every rank a GPU of its own."
            )
        return Placement(target, tuple(range(t, t + d)), devices + own, cores, quota)
    if d > t:
        raise ConfigError(
            f"draft_tensor_parallel_size is {d} but tensor_parallel_size is {t}: make it no "
            "larger, or give the draft devices of its own with draft_devices."
        )
    return Placement(target, target[:d], devices, cores, quota)


def choose_devices(key: str, names: str, count: int) -> tuple[torch.device, ...]:
    """`count` devices from `auto`, one name for all (`cpu`, `cuda`) or a list of names."""
    if names == "auto":
        names = "cuda" if torch.cuda.is_available() else "cpu"
    listed = [name.strip() for name in names.split(",")]
    if listed == ["cuda"] and count > 1:
        listed = [f"cuda:{index}" for index in range(count)]
    if len(listed) == 1:
        listed *= count
    if len(listed) != count:
        raise ConfigError(f"{key} names {len(listed)} devices for {count} ranks: name one a rank.")
    devices = tuple(_device(name) for name in listed)
    on_gpus = [device for device in devices if device.type == "cuda"]
    if len(set(on_gpus)) < len(on_gpus):
        raise ConfigError(f"{key} names a GPU twice: give every rank a GPU of its own.")
    return devices


def _device(name: str) -> torch.device:
    """A GPU is not touched here: each process that does so has some of its memory."""
    try:
        device = torch.device(name)
        if device.type != "cuda":
            return torch.empty(0, device=device).device
        there, index = torch.cuda.device_count(), device.index or 0
        if index >= there:
            raise RuntimeError(f"torch finds {there} GPUs")
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"device {name!r} cannot be used ({reason}): choose cpu or auto."
        ) from None
    return torch.device("cuda", index)
