"""The target's embedding and head, which most guessers share."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tandem.config import EngineConfig
from tandem.models.config import ModelConfig
from tandem.models.layers import Embedding, Linear
from tandem.models.loader import load_tables
from tandem.runners.model_runner import ModelRunner
from tandem.runners.parallel_runner import Runner


class Tables(NamedTuple):
    """Not copied where the target is in one piece."""

    embed: Embedding
    head: Linear


def target_tables(
    config: EngineConfig, model: ModelConfig, runner: Runner, dtype: torch.dtype
) -> Tables:
    """Those of the target's runner; of a target in several parts, whole ones of their own."""
    if isinstance(runner, ModelRunner):
        return Tables(runner.model.embed, runner.model.head)
    embed, head = load_tables(config.model, model, dtype, runner.device)
    return Tables(embed, head)
