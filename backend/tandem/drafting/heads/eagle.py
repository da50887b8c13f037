"""EAGLE-1 (Li et al. 2024, arXiv 2401.15077): a layer over the last hidden state and the next
token's embedding; the target's own head reads it."""

from __future__ import annotations

import torch
from torch import nn

from tandem.drafting.heads.checkpoint import (
    Head,
    Place,
    check_width,
    fill,
    layer_config,
    layer_places,
)
from tandem.drafting.heads.target import Tables
from tandem.models.config import ModelConfig
from tandem.models.feature_head import FeatureHead
from tandem.models.layers import Embedding, Linear


class Eagle(FeatureHead):
    """The published layout: fc over [embedding, hidden], `layers.0` without an input norm."""

    def __init__(self, head: Head, target: ModelConfig, tables: Tables, dtype: torch.dtype) -> None:
        config = layer_config(head, target)
        check_width(head, config, target)
        bias = "fc.bias" in head.tensors
        owns_embedding = "embed_tokens.weight" in head.tensors
        embed = tables.embed
        if owns_embedding:
            embed = Embedding(target.vocab_size, config.hidden_size, dtype)
        project = Linear(2 * config.hidden_size, config.hidden_size, bias, dtype)
        super().__init__(config, dtype, embed, tables.head, project)
        self.drop_input_norm()
        self.norm = nn.Identity()
        places = layer_places(config, "layers.0", "layers.0") | {
            "fc.weight": Place("project.weight"),
            "layers.0.post_attention_layernorm.weight": Place("layers.0.post_norm.weight"),
        }
        if bias:
            places["fc.bias"] = Place("project.bias")
        if owns_embedding:
            places["embed_tokens.weight"] = Place("embed.weight")
        fill(self, head, places)
