"""EAGLE-1 (Li et al. 2024, arXiv 2401.15077): a layer over the last hidden state and the next
token's embedding; the target's own head reads it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tandem.drafting.heads.checkpoint import Head, Place, fill, layer_config, layer_places
from tandem.drafting.heads.feature_head import FeatureHead
from tandem.drafting.heads.target import Tables
from tandem.models.config import ModelConfig
from tandem.models.layers import Embedding, Linear


class Eagle(FeatureHead):
    """The published layout: fc over [embedding, hidden], `layers.0` without an input norm."""

    def __init__(self, head: Head, target: ModelConfig, tables: Tables, dtype: torch.dtype) -> None:
        config = layer_config(head, target)
        super().__init__(config, dtype, tables.head)
        bias = "fc.bias" in head.tensors
        self.fc = Linear(2 * config.hidden_size, config.hidden_size, bias, dtype)
        self.norm = self.layers[0].input_norm = nn.Identity()
        places = layer_places(config, "layers.0", "layers.0") | {
            "fc.weight": Place("fc.weight"),
            "layers.0.post_attention_layernorm.weight": Place("layers.0.post_norm.weight"),
        }
        if bias:
            places["fc.bias"] = Place("fc.bias")
        self.embed: nn.Module = tables.embed
        if "embed_tokens.weight" in head.tensors:
            self.embed = Embedding(target.vocab_size, config.hidden_size, dtype)
            places["embed_tokens.weight"] = Place("embed.weight")
        fill(self, head, places)

    def enter(
        self, tokens: Tensor, hidden: Tensor, beginnings: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        x = self.fc(torch.cat([self.embed(tokens), hidden], -1))
        return x, x
