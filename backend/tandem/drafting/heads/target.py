"""The target's embedding and head, which most guessers share."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from tandem.config import EngineConfig
from tandem.models.config import ModelConfig
from tandem.models.layers import Linear
from tandem.models.loader import load_tables
from tandem.runners.model_runner import ModelRunner
from tandem.runners.parallel_runner import Runner


class Tables(NamedTuple):
    """Not copied where the target is in one piece."""

    embed: nn.Module
    head: Linear


class _Converted(nn.Module):
    """An embedding whose rows are wanted in another number format."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = inner
        self.dtype = dtype

    def forward(self, tokens: Tensor) -> Tensor:
        rows: Tensor = self.inner(tokens)
        return rows.to(self.dtype)


def target_tables(
    config: EngineConfig, model: ModelConfig, runner: Runner, dtype: torch.dtype
) -> Tables:
    """Those of the target's runner; of a target in several parts, whole ones of their own."""
    if isinstance(runner, ModelRunner):
        embed = runner.model.embed
        same = embed.weight.dtype == dtype
        return Tables(embed if same else _Converted(embed, dtype), runner.model.head)
    embed, head = load_tables(config.model, model, dtype, runner.device)
    return Tables(embed, head)
