"""EAGLE-3 and 3.1 (Li et al. 2025, arXiv 2503.01840): hidden states from three depths of the
target, fused; a vocabulary of its own, mapped to the target's."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tandem.drafting.heads.checkpoint import (
    Head,
    Place,
    fill,
    layer_config,
    layer_places,
    tensor,
)
from tandem.drafting.heads.features import Mask
from tandem.drafting.heads.target import Tables
from tandem.errors import CheckpointError
from tandem.models.config import ModelConfig
from tandem.models.feature_head import FeatureHead, Fusion
from tandem.models.layers import Embedding, Linear, RMSNorm


class Eagle3(FeatureHead):
    """The published layout (`midlayer.*`) and that of speculators (`layers.0.*`), which may have
    more layers and, with `mask_hidden`, guess all tokens at once (P-EAGLE). The first layer's
    attention reads [normed embedding, normed hidden]."""

    def __init__(self, head: Head, target: ModelConfig, tables: Tables, dtype: torch.dtype) -> None:
        config = layer_config(head, target, int(head.config.get("num_hidden_layers") or 1))
        size, eps = config.hidden_size, config.norm_eps
        own_vocab = int(head.config.get("draft_vocab_size") or target.vocab_size)
        own_head = Linear(size, own_vocab, False, dtype)
        owns_embedding = "embed_tokens.weight" in head.tensors or size != target.hidden_size
        embed = tables.embed
        if owns_embedding:
            embedded = max(int(head.config.get("vocab_size", 0)), target.vocab_size)
            embed = Embedding(embedded, size, dtype)
        super().__init__(config, dtype, embed, own_head)
        self.taps = _taps(head, target)
        flags = _Flags.of(head)
        self.norm_output = flags.norm_output
        self.normed_residual = flags.norm_before_residual
        width = len(self.taps) * target.hidden_size
        parts = {"none": 0, "whole": 1, "each": len(self.taps)}[flags.fc_norms]
        self.fc_norms = flags.fc_norms
        self.fusion = Fusion(width, size, parts, eps, dtype)
        self.token_norm = RMSNorm(size, eps, dtype)
        self.hidden_norm = RMSNorm(size, eps, dtype)
        fill(self, head, self._places(head, owns_embedding))
        self.vocab_size = target.vocab_size
        self.token_ids = _token_ids(head, own_vocab, target)
        self.mask = _mask(head, width, len(embed.weight))

    def _places(self, head: Head, owns_embedding: bool) -> dict[str, Place]:
        midlayer = "midlayer.mlp.up_proj.weight" in head.tensors
        names = {"fc": "fusion.fc", "norm": "norm", "lm_head": "head"}
        if owns_embedding:
            names["embed_tokens"] = "embed"
        places: dict[str, Place] = {}
        for index in range(len(self.layers)):
            ours = f"layers.{index}"
            theirs = "midlayer" if midlayer and not index else ours
            places |= layer_places(self.config, theirs, ours)
            names[f"{theirs}.input_layernorm"] = f"{ours}.input_norm" if index else "token_norm"
            names[f"{theirs}.post_attention_layernorm"] = f"{ours}.post_norm"
            if not index:
                names[f"{theirs}.hidden_norm"] = "hidden_norm"
        parts = len(self.fusion.norms) if self.fusion else 0
        for index in range(parts):
            theirs = "input_norm" if self.fc_norms == "whole" else f"fc_norm.{index}"
            names[theirs] = f"fusion.norms.{index}"
        return places | {f"{a}.weight": Place(f"{b}.weight") for a, b in names.items()}

    def spread(self, logits: Tensor) -> Tensor:
        if self.token_ids is None:
            return logits
        spread = logits.new_full((logits.shape[0], self.vocab_size), -torch.inf)
        return spread.index_copy_(1, self.token_ids, logits)


class _Flags(NamedTuple):
    """Switches of config.json."""

    norm_before_residual: bool
    norm_output: bool
    fc_norms: str

    @classmethod
    def of(cls, head: Head) -> _Flags:
        raw, eagle = head.config, head.config.get("eagle_config") or {}
        before_fc = eagle.get("norm_before_fc", raw.get("norm_before_fc", False))
        kind = "whole" if before_fc else "each" if raw.get("fc_norm", False) else "none"
        # speculators' EAGLE-3 norms first unless it says otherwise, all others do not.
        norms_first = raw.get("speculators_model_type") == "eagle3"
        first = bool(raw.get("norm_before_residual", norms_first))
        return cls(first, bool(raw.get("norm_output", False)), kind)


def _mask(head: Head, width: int, embedded: int) -> Mask | None:
    """What stands for tokens yet to be guessed; None: guesses follow each other."""
    if "mask_hidden" not in head.tensors:
        return None
    names = ("mask_token_id", "pard_token", "ptd_token_id")
    found = [head.config[name] for name in names if head.config.get(name) is not None]
    if not found:
        raise CheckpointError(
            f"{head.folder} holds mask_hidden, but config.json no {names[0]}: restore the file."
        )
    if not 0 <= int(found[0]) < embedded:
        raise CheckpointError(
            f"{head.folder} masks with the token {found[0]}, of {embedded} that are embedded: use "
            "the config.json that belongs to these weights."
        )
    stored = head.tensors["mask_hidden"]
    if stored.numel() == width:
        return Mask(int(found[0]), stored.flatten())
    raise CheckpointError(
        f"{head.folder}: the tensor mask_hidden has {stored.numel()} numbers where {width} are "
        "due: use the head that was trained for this target."
    )


def _taps(head: Head, target: ModelConfig) -> tuple[int, ...]:
    """Layers of the target whose inputs are read: those the checkpoint names, or EAGLE-3's. What
    the last layer gives counts as the input of one more."""
    key = "eagle_aux_hidden_state_layer_ids"
    named = (head.config.get("eagle_config") or {}).get(key) or head.config.get(key)
    layers = target.num_layers
    found = tuple(int(i) for i in named) if named else (2, layers // 2, layers - 3)
    if len(set(found)) < len(found) or not all(0 <= layer <= layers for layer in found):
        raise CheckpointError(
            f"{head.folder} reads the layers {list(found)}, but the target has {layers}: name "
            f"different ones in {key}."
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
