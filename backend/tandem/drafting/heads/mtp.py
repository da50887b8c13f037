"""Multi-token prediction in MiMo's published layout (arXiv 2505.07608): a whole decoder layer over
[hidden, embedding], behind the target's own embedding and head.

One module guesses every token, feeding on itself; of several, each guesses one (`modules`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tandem.drafting.heads.checkpoint import Head, Place, fill, layer_config, layer_places
from tandem.drafting.heads.target import Tables
from tandem.models.config import ModelConfig
from tandem.models.decoder import Attention, Layer
from tandem.models.layers import Linear, RMSNorm, RotaryTable

PREFIX = "model.mtp_layers."


def count_modules(head: Head) -> int:
    """How many modules a checkpoint holds."""
    places = {name.removeprefix(PREFIX).split(".")[0] for name in head.tensors if PREFIX in name}
    return max(1, len(places))


class Mtp(nn.Module):
    """`model.mtp_layers.{index}.*`."""

    taps: tuple[int, ...] = ()

    def __init__(
        self, head: Head, target: ModelConfig, tables: Tables, dtype: torch.dtype, index: int = 0
    ) -> None:
        super().__init__()
        config = layer_config(head, target, count_modules(head))
        self.index = index
        size, eps = config.hidden_size, config.norm_eps
        self.config = config
        self.tables = tables
        self.token_norm = RMSNorm(size, eps, dtype)
        self.hidden_norm = RMSNorm(size, eps, dtype)
        self.project = Linear(2 * size, size, False, dtype)
        self.layer = Layer(config, dtype)
        self.norm = RMSNorm(size, eps, dtype)
        self.rope = RotaryTable(config, dtype)
        names = {
            "token_layernorm": "token_norm",
            "hidden_layernorm": "hidden_norm",
            "input_proj": "project",
            "input_layernorm": "layer.input_norm",
            "post_attention_layernorm": "layer.post_norm",
            "final_layernorm": "norm",
        }
        prefix = f"{PREFIX}{index}"
        places = {f"{prefix}.{a}.weight": Place(f"{b}.weight") for a, b in names.items()}
        fill(self, head, places | layer_places(config, prefix, "layer"))

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def step(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, attention: Attention
    ) -> tuple[Tensor, Tensor]:
        embedded = self.tables.embed(tokens).masked_fill((positions == 0)[:, None], 0)
        both = torch.cat([self.hidden_norm(hidden), self.token_norm(embedded)], -1)
        x = self.layer(self.index, self.project(both), self.rope(positions), attention)
        out = self.norm(x)
        return out, out

    def logits(self, output: Tensor) -> Tensor:
        return self.tables.head(output).float()
