"""What rank 0 tells the other ranks, and what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from tandem.attention.plan import Query
from tandem.models.config import ModelConfig
from tandem.runners.placement import Placement

Role = Literal["target", "draft"]


class Join(NamedTuple):
    """Become a rank: pin to its cores, meet the others at the files in a folder."""

    placement: Placement
    rank: int
    folder: Path


class Load(NamedTuple):
    """Read a part of a model."""

    role: Role
    folder: Path
    config: ModelConfig
    dtype: torch.dtype


class Allocate(NamedTuple):
    """Make the KV cache."""

    role: Role
    num_blocks: int
    block_size: int


class Forward(NamedTuple):
    """Run one pass; not answered."""

    role: Role
    tokens: Sequence[int]
    queries: Sequence[Query]
    rows: Sequence[int] | None


class Move(NamedTuple):
    """Copy KV slots; not answered."""

    role: Role
    source: Sequence[int]
    target: Sequence[int]


class Room(NamedTuple):
    """Bytes of a GPU's memory."""

    free: int
    total: int


class Done(NamedTuple):
    """A command was carried out."""

    room: Room | None
    """What is left of the rank's GPU, if it has one."""


class Failed(NamedTuple):
    """It was not: a sentence for the user."""

    reason: str


Command = Join | Load | Allocate | Forward | Move
