"""EAGLE-3 and 3.1 (Li et al. 2025, arXiv 2503.01840): hidden states from three depths of the
target, fused; a vocabulary of its own, mapped to the target's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tandem.drafting.heads.checkpoint import (
    Head,
    Place,
    fill,
    layer_config,
    layer_places,
    tensor,
)
from tandem.drafting.heads.target import Tables
from tandem.errors import CheckpointError
from tandem.models.config import ModelConfig
from tandem.models.decoder import MLP, Attention, SelfAttention
from tandem.models.layers import Embedding, Linear, RMSNorm, RotaryTable


class _MidLayer(nn.Module):
    """A layer whose attention reads [normed embedding, normed hidden]."""

    def __init__(self, config: ModelConfig, norm_before_residual: bool, dtype: torch.dtype) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.norm_eps
        self.norm_before_residual = norm_before_residual
        self.input_norm = RMSNorm(size, eps, dtype)
        self.hidden_norm = RMSNorm(size, eps, dtype)
        self.post_norm = RMSNorm(size, eps, dtype)
        self.attention = SelfAttention(config, dtype, 2 * size)
        self.mlp = MLP(config, dtype)

    def forward(
        self, embedded: Tensor, hidden: Tensor, rope: tuple[Tensor, Tensor], attention: Attention
    ) -> Tensor:
        normed = self.hidden_norm(hidden)
        both = torch.cat([self.input_norm(embedded), normed], -1)
        residual = normed if self.norm_before_residual else hidden
        x: Tensor = residual + self.attention(0, both, rope, attention)
        x = x + self.mlp(self.post_norm(x))
        return x


class Eagle3(nn.Module):
    """The published layout (`midlayer.*`) and that of speculators (`layers.0.*`)."""

    def __init__(self, head: Head, target: ModelConfig, tables: Tables, dtype: torch.dtype) -> None:
        super().__init__()
        raw, names = head.config, head.tensors
        config = layer_config(head, target)
        size = config.hidden_size
        self.config = config
        self.taps = _taps(head, target)
        self.norm_output = bool(raw.get("norm_output", False))
        self.fc = Linear(len(self.taps) * target.hidden_size, size, False, dtype)
        self.fc_norm = nn.ModuleList(
            RMSNorm(target.hidden_size, config.norm_eps, dtype)
            for _ in self.taps
            if raw.get("fc_norm", False)
        )
        before_residual = bool(raw.get("norm_before_residual", False))
        self.layer = _MidLayer(config, before_residual, dtype)
        self.norm = RMSNorm(size, config.norm_eps, dtype)
        self.rope = RotaryTable(config, dtype)
        own_vocab = int(raw.get("draft_vocab_size") or target.vocab_size)
        self.head = Linear(size, own_vocab, False, dtype)
        theirs = "midlayer" if "midlayer.mlp.up_proj.weight" in names else "layers.0"
        places = layer_places(config, theirs, "layer") | {
            "fc.weight": Place("fc.weight"),
            "norm.weight": Place("norm.weight"),
            "lm_head.weight": Place("head.weight"),
            f"{theirs}.hidden_norm.weight": Place("layer.hidden_norm.weight"),
            f"{theirs}.input_layernorm.weight": Place("layer.input_norm.weight"),
            f"{theirs}.post_attention_layernorm.weight": Place("layer.post_norm.weight"),
        }
        for index in range(len(self.fc_norm)):
            places[f"fc_norm.{index}.weight"] = Place(f"fc_norm.{index}.weight")
        self.embed: nn.Module = tables.embed
        if "embed_tokens.weight" in names:
            self.embed = Embedding(target.vocab_size, size, dtype)
            places["embed_tokens.weight"] = Place("embed.weight")
        fill(self, head, places)
        self.vocab_size = target.vocab_size
        self.token_ids = _token_ids(head, own_vocab, target)

    def fuse(self, features: Tensor) -> Tensor:
        if len(self.fc_norm):
            parts = features.chunk(len(self.taps), -1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            features = torch.cat(normed, -1)
        return self.fc(features)

    def step(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, attention: Attention
    ) -> tuple[Tensor, Tensor]:
        x: Tensor = self.layer(self.embed(tokens), hidden, self.rope(positions), attention)
        normed = self.norm(x)
        return normed, normed if self.norm_output else x

    def logits(self, output: Tensor) -> Tensor:
        own = self.head(output).float()
        if self.token_ids is None:
            return own
        logits = own.new_full((own.shape[0], self.vocab_size), -torch.inf)
        return logits.index_copy_(1, self.token_ids.to(own.device), own)


def _taps(head: Head, target: ModelConfig) -> tuple[int, ...]:
    """Layers of the target whose inputs are read: those the checkpoint names, or EAGLE-3's."""
    settings = head.config.get("eagle_config") or {}
    named = settings.get("eagle_aux_hidden_state_layer_ids")
    layers = target.num_layers
    found = tuple(int(i) for i in named) if named else (2, layers // 2, layers - 3)
    if len(set(found)) < len(found) or not all(0 <= layer < layers for layer in found):
        raise CheckpointError(
            f"{head.folder} reads the layers {list(found)}, but the target has {layers}: name "
            "different ones in eagle_config.eagle_aux_hidden_state_layer_ids."
        )
    if list(found) != sorted(found):
        raise CheckpointError(
            f"{head.folder} reads the layers {list(found)}: name them in ascending order."
        )
    return found


def _token_ids(head: Head, own_vocab: int, target: ModelConfig) -> Tensor | None:
    """[own_vocab] the target's id of each of the head's tokens; None: they are the same."""
    if "d2t" not in head.tensors and own_vocab == target.vocab_size:
        return None
    own = torch.arange(own_vocab)
    ids = own + tensor(head, "d2t", [own_vocab]).to(torch.int64)
    if int(ids.min()) < 0 or int(ids.max()) >= target.vocab_size or len(ids.unique()) < own_vocab:
        raise CheckpointError(
            f"{head.folder}: d2t names tokens outside the target's vocabulary of "
            f"{target.vocab_size}, or one of them twice: use the head trained for this target."
        )
    return ids
