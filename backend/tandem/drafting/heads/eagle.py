"""EAGLE-1 (Li et al. 2024, arXiv 2401.15077): a layer over the last hidden state and the next
token's embedding; the target's own head reads it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tandem.drafting.heads.checkpoint import Head, Place, fill, layer_config, layer_places
from tandem.drafting.heads.target import Tables
from tandem.models.config import ModelConfig
from tandem.models.decoder import Attention, Layer
from tandem.models.layers import Embedding, Linear, RotaryTable


class Eagle(nn.Module):
    """The published layout: fc over [embedding, hidden], `layers.0` without an input norm."""

    taps: tuple[int, ...] = ()

    def __init__(self, head: Head, target: ModelConfig, tables: Tables, dtype: torch.dtype) -> None:
        super().__init__()
        config = layer_config(head, target)
        self.config = config
        self.tables = tables
        bias = "fc.bias" in head.tensors
        self.fc = Linear(2 * config.hidden_size, config.hidden_size, bias, dtype)
        self.layer = Layer(config, dtype)
        self.layer.input_norm = nn.Identity()  # type: ignore[assignment]
        self.rope = RotaryTable(config, dtype)
        places = layer_places(config, "layers.0", "layer") | {
            "fc.weight": Place("fc.weight"),
            "layers.0.post_attention_layernorm.weight": Place("layer.post_norm.weight"),
        }
        if bias:
            places["fc.bias"] = Place("fc.bias")
        self.embed: nn.Module = tables.embed
        if "embed_tokens.weight" in head.tensors:
            self.embed = Embedding(target.vocab_size, config.hidden_size, dtype)
            places["embed_tokens.weight"] = Place("embed.weight")
        fill(self, head, places)

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def step(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, attention: Attention
    ) -> tuple[Tensor, Tensor]:
        x = self.fc(torch.cat([self.embed(tokens), hidden], -1))
        out: Tensor = self.layer(0, x, self.rope(positions), attention)
        return out, out

    def logits(self, output: Tensor) -> Tensor:
        return self.tables.head(output).float()
