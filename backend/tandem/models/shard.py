"""Which part of a model a tensor-parallel rank holds, and where it lies in the checkpoint.

Attention is split by heads, the MLP by columns and then rows, embedding and head by vocabulary
(Shoeybi et al. 2019, "Megatron-LM"). A KV head that ranks share is held by each of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from tandem.errors import ConfigError
from tandem.models.config import ModelConfig


class Shard(NamedTuple):
    """Part `rank` of `size`."""

    rank: int
    size: int


WHOLE = Shard(0, 1)


class Cut(Enum):
    """How a checkpoint's tensor is divided among ranks."""

    NOT = "every rank holds all of it"
    ROWS = "output features"
    KV_ROWS = "output features of KV heads, which ranks may share"
    COLUMNS = "input features"
    VOCABULARY = "output features; the last rank's part may be shorter"
    FIRST = "the first rank's alone, zero on others: it is added to a sum over ranks"


def check_shards(name: str, config: ModelConfig, size: int, parameter: str) -> None:
    """Raises `ConfigError` where `size` ranks cannot share the model."""
    heads, kv_heads = config.num_heads, config.num_kv_heads
    for what, count in (("attention heads", heads), ("MLP columns", config.intermediate_size)):
        if count % size:
            raise ConfigError(
                f"{parameter} is {size}, but {name} has {count} {what}, which {size} ranks cannot "
                f"share evenly: choose a divisor of {count}."
            )
    if kv_heads % size and size % kv_heads:
        raise ConfigError(
            f"{parameter} is {size}, but {name} has {kv_heads} KV heads: choose a divisor or a "
            f"multiple of {kv_heads}."
        )


def local_config(config: ModelConfig, shard: Shard) -> ModelConfig:
    """The shape of one rank's part, a smaller decoder."""
    size = shard.size
    return dataclasses.replace(
        config,
        num_heads=config.num_heads // size,
        num_kv_heads=max(1, config.num_kv_heads // size),
        intermediate_size=config.intermediate_size // size,
        vocab_size=-(-config.vocab_size // size),
    )


def source(
    cut: Cut, shape: Sequence[int], config: ModelConfig, shard: Shard
) -> tuple[slice, ...] | None:
    """Where a rank's part lies in a tensor of `shape`; None: nowhere. config: the whole model's."""
    rank, size = shard
    if cut is Cut.FIRST and rank:
        return None
    if cut in (Cut.NOT, Cut.FIRST):
        return (slice(None),)
    if cut is Cut.COLUMNS:
        return (slice(None), _part(shape[1], rank, size))
    if cut is Cut.VOCABULARY:
        most = -(-config.vocab_size // size)
        return (slice(min(rank * most, shape[0]), min((rank + 1) * most, shape[0])),)
    if cut is Cut.KV_ROWS:
        rows = shape[0] // config.num_kv_heads
        first = rank * config.num_kv_heads // size
        return (slice(first * rows, (first + max(1, config.num_kv_heads // size)) * rows),)
    return (_part(shape[0], rank, size),)


def _part(length: int, rank: int, size: int) -> slice:
    return slice(rank * length // size, (rank + 1) * length // size)
