"""What each rank holds and how often ranks must talk: by formula, before anything is loaded."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tandem.models.config import ModelConfig
from tandem.models.shard import Shard, local_config
from tandem.runners.collectives import collectives_a_forward
from tandem.runners.commands import Role
from tandem.runners.model_runner import block_bytes
from tandem.runners.placement import Placement


class Footprint(NamedTuple):
    """One model on one rank."""

    rank: int
    device: str
    role: Role
    weights: int
    """Bytes."""
    kv_block: int
    """Bytes a block of the KV cache."""
    collectives: int
    """Calls in a step of the role: a forward pass that gives logits."""


def footprints(
    placement: Placement,
    models: dict[Role, ModelConfig],
    dtype: torch.dtype,
    block_size: int,
) -> list[Footprint]:
    """A line for every model that a rank holds, by rank."""
    return sorted(
        Footprint(
            rank,
            str(placement.devices[rank]),
            role,
            weight_count(config, Shard(index, len(ranks))) * dtype.itemsize,
            block_bytes(config, dtype, block_size, Shard(index, len(ranks))),
            collectives_a_forward(config.num_layers, len(ranks)),
        )
        for role, config in models.items()
        for ranks in [placement.ranks(role)]
        for index, rank in enumerate(ranks)
    )


def weight_count(config: ModelConfig, shard: Shard) -> int:
    """Numbers in a rank's weights. A tied head counts: it has a layout of its own."""
    local = local_config(config, shard)
    hidden, inner, dim = local.hidden_size, local.intermediate_size, local.head_dim
    query, keys_values = local.num_heads * dim, local.kv_width
    attention = hidden * (query + keys_values) + query * hidden
    attention += config.qkv_bias * (query + keys_values) + config.out_bias * hidden
    attention += config.qk_norm * 2 * dim
    mlp = 3 * hidden * inner + config.mlp_bias * (2 * inner + hidden)
    return (
        local.num_layers * (attention + mlp + 2 * hidden) + 2 * local.vocab_size * hidden + hidden
    )
