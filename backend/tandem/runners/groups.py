"""How the ranks of a group exchange tensors: shared memory on CPUs, NCCL between GPUs.

On CPUs a library's collective call goes through sockets and wakes threads, a hundred times the
time that the numbers need (docs/performance_log.md). Ranks of one host share memory instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

SLOT_BYTES = 1 << 20  # what a rank shows the others at a time; larger tensors go in pieces
_FLAG_STRIDE = 8  # int64s: a cache line for every rank's flag
_SPINS = 200  # looks at a flag before the core is offered to others


class Group(Protocol):
    """The calls that a tensor-parallel model needs. All ranks make the same calls in order."""

    def all_reduce(self, x: Tensor) -> None:
        """Replaces a contiguous x by the sum over ranks, the same bits on all."""
        ...

    def gather(self, x: Tensor) -> list[Tensor] | None:
        """The first rank gets every rank's x, all of one shape."""
        ...

    def pass_on(self, x: Tensor) -> None:
        """Fills the first rank's x with the last rank's."""
        ...


class RankLostError(RuntimeError):
    """Another rank will not answer any more."""


def group_file_bytes(size: int) -> int:
    """Bytes of the file that a group's ranks map."""
    return 8 * _FLAG_STRIDE * size + 2 * size * SLOT_BYTES


class SharedMemoryGroup:
    """Ranks on one host. Each has two slots and a flag in a file that all of them map.

    In exchange n a rank writes to its slot n mod 2, sets its flag to n and waits until all flags
    have reached n. Nobody can be at n + 2, and write to the same slot, before all have reached
    n + 1, and so have read what they wanted of n.
    """

    def __init__(self, file: Path, rank: int, size: int, lost: Callable[[], bool]) -> None:
        whole = torch.from_file(
            str(file), shared=True, size=group_file_bytes(size), dtype=torch.uint8
        )
        flags = 8 * _FLAG_STRIDE * size
        self._flags = whole[:flags].view(torch.int64).numpy()
        self._slots = whole[flags:].view(2, size, SLOT_BYTES)
        self._rank = rank
        self._size = size
        self._lost = lost
        self._count = 0

    def all_reduce(self, x: Tensor) -> None:
        """Sums in the order of ranks, so that all get the same bits."""
        for piece in _pieces(x):
            first, *others = self._exchange(piece)
            piece.copy_(first)
            for other in others:
                piece.add_(other)

    def gather(self, x: Tensor) -> list[Tensor] | None:
        """The first rank gets every rank's x."""
        gathered = [torch.empty_like(x) for _ in range(self._size)] if self._rank == 0 else []
        wanted = [_pieces(one) for one in gathered]
        for index, piece in enumerate(_pieces(x)):
            shown = self._exchange(piece)
            for pieces, part in zip(wanted, shown, strict=False):
                pieces[index].copy_(part)
        return gathered or None

    def pass_on(self, x: Tensor) -> None:
        """From the last rank to the first."""
        for piece in _pieces(x):
            shown = self._exchange(piece)
            if self._rank == 0:
                piece.copy_(shown[-1])

    def _exchange(self, piece: Tensor) -> list[Tensor]:
        """Shows a piece to the other ranks; all ranks' pieces, to be read before the next call."""
        self._count += 1
        slots = self._slots[self._count % 2].view(piece.dtype)[:, : piece.numel()]
        slots[self._rank].copy_(piece)
        self._flags[self._rank * _FLAG_STRIDE] = self._count
        for rank in range(self._size):
            self._wait(rank * _FLAG_STRIDE)
        return list(slots.unbind())

    def _wait(self, flag: int) -> None:
        spins = 0
        while self._flags[flag] < self._count:
            spins += 1
            if spins % _SPINS == 0:
                os.sched_yield()
                if self._lost():
                    raise RankLostError("A rank is lost.")


def _pieces(x: Tensor) -> tuple[Tensor, ...]:
    return x.view(-1).split(SLOT_BYTES // x.element_size())


class NcclGroup:
    """Ranks on GPUs."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def all_reduce(self, x: Tensor) -> None:
        """Sums over ranks."""
        dist.all_reduce(x, group=self._group)

    def gather(self, x: Tensor) -> list[Tensor] | None:
        """The first rank gets every rank's x."""
        size, first = dist.get_world_size(self._group), dist.get_rank(self._group) == 0
        gathered = [torch.empty_like(x) for _ in range(size)] if first else None
        dist.gather(x, gathered, group=self._group, group_dst=0)
        return gathered

    def pass_on(self, x: Tensor) -> None:
        """From the last rank to the first."""
        last = dist.get_world_size(self._group) - 1
        if dist.get_rank(self._group) == 0:
            dist.recv(x, group=self._group, group_src=last)
        elif dist.get_rank(self._group) == last:
            dist.send(x, group=self._group, group_dst=0)
