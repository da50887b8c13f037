"""Reads a head's checkpoint: names to tensors, every one checked by name and shape."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from tandem.errors import CheckpointError
from tandem.models.config import ModelConfig, read_json, read_rope

PICKLED = ("pytorch_model.bin", "medusa_lm_head.pt")
UNREADABLE = (
    SafetensorError,
    OSError,
    RuntimeError,
    ValueError,
    TypeError,
    EOFError,
    pickle.UnpicklingError,
)


class Place(NamedTuple):
    """Where a checkpoint's tensor goes: rows of a module's parameter."""

    parameter: str
    start: int = 0
    rows: int | None = None
    """None: all."""


class Head(NamedTuple):
    """A folder's content."""

    folder: Path
    config: dict[str, Any]
    tensors: Mapping[str, Tensor]


class _Stored(Mapping[str, Tensor]):
    """Tensors of safetensors files, read when asked for: a head may lie among a target's."""

    def __init__(self, paths: Iterable[Path]) -> None:
        handles = [safe_open(path, framework="pt") for path in paths]
        self._handles = {name: handle for handle in handles for name in handle.keys()}  # noqa: SIM118

    def __getitem__(self, name: str) -> Tensor:
        found: Tensor = self._handles[name].get_tensor(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)


def read_head(folder: Path) -> Head:
    """config.json and the tensors. Raises `CheckpointError`."""
    config = read_json(folder / "config.json")
    layer = config.get("transformer_layer_config") or {}  # speculators nests the layer's
    if not isinstance(layer, dict):
        raise CheckpointError(
            f"{folder}/config.json: transformer_layer_config is no object: restore the file."
        )
    config = layer | config
    try:
        tensors: Mapping[str, Tensor] = _Stored(sorted(folder.glob("*.safetensors")))
        if not tensors:
            tensors = {}
            for path in (folder / name for name in PICKLED if (folder / name).exists()):
                tensors |= torch.load(path, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        raise CheckpointError(f"The weights in {folder} cannot be read ({error}).") from None
    if not tensors:
        raise CheckpointError(
            f"{folder} holds no weights: it needs model.safetensors or one of {', '.join(PICKLED)}."
        )
    return Head(folder, config, tensors)


def value(head: Head, key: str) -> Any:
    """An entry of the head's config.json. Raises `CheckpointError` where it is missing."""
    if key not in head.config:
        raise CheckpointError(f"{head.folder}/config.json lacks {key!r}: restore the file.")
    return head.config[key]


def fill(module: nn.Module, head: Head, places: Mapping[str, Place]) -> None:
    """Copies the named tensors into the module. Raises `CheckpointError` by tensor name."""
    fill_all(module, head, places.items())


def fill_all(module: nn.Module, head: Head, places: Iterable[tuple[str, Place]]) -> None:
    """As `fill`; a tensor may go to several places."""
    parameters = dict(module.named_parameters())
    for name, place in places:
        target = parameters[place.parameter].data
        if place.rows is not None:
            target = target.narrow(0, place.start, place.rows)
        target.copy_(tensor(head, name, target.shape))


def tensor(head: Head, name: str, shape: Iterable[int]) -> Tensor:
    """One tensor of a known shape."""
    found = head.tensors.get(name)
    if found is None:
        raise CheckpointError(
            f"{head.folder} lacks the tensor {name}: name the folder of a head for this method and "
            "this target in draft_model."
        )
    if list(found.shape) != list(shape):
        raise CheckpointError(
            f"{head.folder}: the tensor {name} has shape {list(found.shape)} where "
            f"{list(shape)} is due: use the head that was trained for this target."
        )
    return found


def layer_places(config: ModelConfig, theirs: str, ours: str) -> dict[str, Place]:
    """The matrices of a decoder layer's attention and MLP; norms are named by each format."""
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    inner = config.intermediate_size
    parts = [
        ("self_attn.q_proj", "attention.qkv", 0, query, config.qkv_bias),
        ("self_attn.k_proj", "attention.qkv", query, key, config.qkv_bias),
        ("self_attn.v_proj", "attention.qkv", query + key, key, config.qkv_bias),
        ("self_attn.o_proj", "attention.out", 0, None, config.out_bias),
        ("mlp.gate_proj", "mlp.gate_up", 0, inner, config.mlp_bias),
        ("mlp.up_proj", "mlp.gate_up", inner, inner, config.mlp_bias),
        ("mlp.down_proj", "mlp.down", 0, None, config.mlp_bias),
    ]
    places: dict[str, Place] = {}
    for name, parameter, start, rows, bias in parts:
        for kind in ("weight", "bias") if bias else ("weight",):
            places[f"{theirs}.{name}.{kind}"] = Place(f"{ours}.{parameter}.{kind}", start, rows)
    if config.qk_norm:
        for norm in ("q_norm", "k_norm"):
            place = Place(f"{ours}.attention.{norm}.weight")
            places[f"{theirs}.self_attn.{norm}.weight"] = place
    return places


def check_width(head: Head, config: ModelConfig, target: ModelConfig) -> None:
    """A head that takes the target's hidden states as they are has layers of their width."""
    if config.hidden_size != target.hidden_size:
        raise CheckpointError(
            f"{head.folder} was made for hidden states of {config.hidden_size} numbers, the target "
            f"has {target.hidden_size}: use the head that was trained for this target."
        )


def layer_config(head: Head, target: ModelConfig, layers: int = 1) -> ModelConfig:
    """Shape of the head's layers; what its config.json leaves out is the target's.

    It reaches as far as the target: a smaller `max_position_embeddings` is but how it was trained.
    """
    raw = head.config
    theta, scaling = target.rope_theta, target.rope_scaling
    if raw.get("rope_theta") or raw.get("rope_parameters"):
        theta, scaling = read_rope(head.folder, raw)
    heads = int(raw.get("num_attention_heads", target.num_heads))
    hidden = int(raw.get("hidden_size", target.hidden_size))
    names = head.tensors.keys()
    return replace(
        target,
        num_layers=layers,
        rope_theta=theta,
        rope_scaling=scaling,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or hidden // heads),
        intermediate_size=int(raw.get("intermediate_size", target.intermediate_size)),
        norm_eps=float(raw.get("rms_norm_eps", target.norm_eps)),
        qkv_bias=any(name.endswith("self_attn.q_proj.bias") for name in names),
        out_bias=any(name.endswith("self_attn.o_proj.bias") for name in names),
        mlp_bias=any(name.endswith("mlp.down_proj.bias") for name in names),
        qk_norm=any(name.endswith("self_attn.q_norm.weight") for name in names),
        tied_embeddings=False,
    )
