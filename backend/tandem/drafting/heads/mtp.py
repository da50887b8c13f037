"""Multi-token prediction in MiMo's published layout (arXiv 2505.07608): a whole decoder layer over
[hidden, embedding], behind the target's own embedding and head.

One module guesses every token, feeding on itself; of several, each guesses one (`modules`).
"""

from __future__ import annotations

import torch

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
from tandem.models.layers import Linear, RMSNorm

PREFIX = "model.mtp_layers."


def count_modules(head: Head) -> int:
    """How many modules a checkpoint holds."""
    places = {name.removeprefix(PREFIX).split(".")[0] for name in head.tensors if PREFIX in name}
    return max(1, len(places))


class Mtp(FeatureHead):
    """`model.mtp_layers.{index}.*`."""

    hidden_first = True
    blind_start = True

    def __init__(
        self, head: Head, target: ModelConfig, tables: Tables, dtype: torch.dtype, index: int = 0
    ) -> None:
        config = layer_config(head, target)
        check_width(head, config, target)
        size, eps = config.hidden_size, config.norm_eps
        project = Linear(2 * size, size, False, dtype)
        super().__init__(config, dtype, tables.embed, tables.head, project)
        self.token_norm = RMSNorm(size, eps, dtype)
        self.hidden_norm = RMSNorm(size, eps, dtype)
        names = {
            "token_layernorm": "token_norm",
            "hidden_layernorm": "hidden_norm",
            "input_proj": "project",
            "input_layernorm": "layers.0.input_norm",
            "post_attention_layernorm": "layers.0.post_norm",
            "final_layernorm": "norm",
        }
        prefix = f"{PREFIX}{index}"
        places = {f"{prefix}.{a}.weight": Place(f"{b}.weight") for a, b in names.items()}
        fill(self, head, places | layer_places(config, prefix, "layers.0"))
