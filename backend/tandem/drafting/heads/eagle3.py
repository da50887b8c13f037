"""EAGLE-3 and 3.1 (Li et al. 2025, arXiv 2503.01840): hidden states from three depths of the
target, fused; a vocabulary of its own, mapped to the target's."""

from __future__ import annotations

from typing import NamedTuple

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
from tandem.drafting.heads.features import Mask
from tandem.drafting.heads.target import Tables
from tandem.errors import CheckpointError
from tandem.models.config import ModelConfig
from tandem.models.decoder import MLP, Attention, Layer, SelfAttention
from tandem.models.layers import Embedding, Linear, RMSNorm, RotaryTable


class _FirstLayer(nn.Module):
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


class _Norms(nn.Module):
    """What fc's input passes: nothing, one norm over all of it, or one a tapped layer."""

    def __init__(self, kind: str, taps: int, width: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        widths: dict[str, int] = {}
        if kind == "whole":
            widths = {"input_norm.weight": taps * width}
        elif kind == "each":
            widths = {f"fc_norm.{index}.weight": width for index in range(taps)}
        self.names = list(widths)
        self.parts = nn.ModuleList(RMSNorm(each, eps, dtype) for each in widths.values())

    def forward(self, features: Tensor) -> Tensor:
        if not len(self.parts):
            return features
        chunks = features.chunk(len(self.parts), -1)
        return torch.cat([norm(part) for norm, part in zip(self.parts, chunks, strict=True)], -1)


class Eagle3(nn.Module):
    """The published layout (`midlayer.*`) and that of speculators (`layers.0.*`), which may have
    more layers and, with `mask_hidden`, guess all tokens at once (P-EAGLE)."""

    def __init__(self, head: Head, target: ModelConfig, tables: Tables, dtype: torch.dtype) -> None:
        super().__init__()
        config = layer_config(head, target, int(head.config.get("num_hidden_layers") or 1))
        size, eps = config.hidden_size, config.norm_eps
        self.config = config
        self.taps = _taps(head, target)
        flags = _Flags.of(head)
        self.norm_output = flags.norm_output
        width = len(self.taps) * target.hidden_size
        self.norms = _Norms(flags.fc_norms, len(self.taps), target.hidden_size, eps, dtype)
        self.fc = Linear(width, size, False, dtype)
        self.first = _FirstLayer(config, flags.norm_before_residual, dtype)
        self.later = nn.ModuleList(Layer(config, dtype) for _ in range(config.num_layers - 1))
        self.norm = RMSNorm(size, eps, dtype)
        self.rope = RotaryTable(config, dtype)
        own_vocab = int(head.config.get("draft_vocab_size") or target.vocab_size)
        self.head = Linear(size, own_vocab, False, dtype)
        self.embed: nn.Module = tables.embed
        self.owns_embedding = "embed_tokens.weight" in head.tensors or size != target.hidden_size
        embedded = target.vocab_size
        if self.owns_embedding:
            embedded = max(int(head.config.get("vocab_size", 0)), target.vocab_size)
            self.embed = Embedding(embedded, size, dtype)
        fill(self, head, self._places(head))
        self.vocab_size = target.vocab_size
        self.token_ids: Tensor | None
        self.register_buffer("token_ids", _token_ids(head, own_vocab, target))
        self.mask = _mask(head, width, embedded)

    def _places(self, head: Head) -> dict[str, Place]:
        first = "midlayer" if "midlayer.mlp.up_proj.weight" in head.tensors else "layers.0"
        places = layer_places(self.config, first, "first")
        names = {
            "fc": "fc",
            "norm": "norm",
            "lm_head": "head",
            f"{first}.hidden_norm": "first.hidden_norm",
            f"{first}.input_layernorm": "first.input_norm",
            f"{first}.post_attention_layernorm": "first.post_norm",
        }
        if self.owns_embedding:
            names["embed_tokens"] = "embed"
        for index in range(len(self.later)):
            theirs, ours = f"layers.{index + 1}", f"later.{index}"
            places |= layer_places(self.config, theirs, ours)
            names[f"{theirs}.input_layernorm"] = f"{ours}.input_norm"
            names[f"{theirs}.post_attention_layernorm"] = f"{ours}.post_norm"
        norms = {name: Place(f"norms.parts.{i}.weight") for i, name in enumerate(self.norms.names)}
        return places | norms | {f"{a}.weight": Place(f"{b}.weight") for a, b in names.items()}

    def fuse(self, features: Tensor) -> Tensor:
        fused: Tensor = self.fc(self.norms(features))
        return fused

    def step(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, attention: Attention
    ) -> tuple[Tensor, Tensor]:
        rope = self.rope(positions)
        x: Tensor = self.first(self.embed(tokens), hidden, rope, attention)
        for index, layer in enumerate(self.later, 1):
            x = layer(index, x, rope, attention)
        normed = self.norm(x)
        return normed, normed if self.norm_output else x

    def logits(self, output: Tensor) -> Tensor:
        own = self.head(output).float()
        if self.token_ids is None:
            return own
        logits = own.new_full((own.shape[0], self.vocab_size), -torch.inf)
        return logits.index_copy_(1, self.token_ids, own)


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
