"""Reads a Hugging Face checkpoint folder into a decoder: one mapping of names, every tensor
checked by name and shape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tandem.errors import CheckpointError
from tandem.models.config import ModelConfig, read_json
from tandem.models.decoder import Decoder
from tandem.models.layers import pack_linears


class Slot(NamedTuple):
    """Where a checkpoint tensor goes: rows of one of the decoder's parameters."""

    parameter: str
    start: int
    rows: int


def checkpoint_map(config: ModelConfig) -> dict[str, Slot]:
    """Checkpoint name to slot, for every tensor the decoder needs."""
    hidden, vocab = config.hidden_size, config.vocab_size
    slots = {
        "model.embed_tokens.weight": Slot("embed", 0, vocab),
        "model.norm.weight": Slot("norm.weight", 0, hidden),
    }
    if not config.tied_embeddings:
        slots["lm_head.weight"] = Slot("head.weight", 0, vocab)
    for layer in range(config.num_layers):
        for theirs, slot in _layer_map(config).items():
            slots[f"model.layers.{layer}.{theirs}"] = slot._replace(
                parameter=f"layers.{layer}.{slot.parameter}"
            )
    return slots


def _layer_map(config: ModelConfig) -> dict[str, Slot]:
    """Names inside one layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = [
        ("self_attn.q_proj", "attention.qkv", 0, query, config.qkv_bias),
        ("self_attn.k_proj", "attention.qkv", query, key, config.qkv_bias),
        ("self_attn.v_proj", "attention.qkv", query + key, key, config.qkv_bias),
        ("self_attn.o_proj", "attention.out", 0, hidden, config.out_bias),
        ("mlp.gate_proj", "mlp.gate_up", 0, inner, config.mlp_bias),
        ("mlp.up_proj", "mlp.gate_up", inner, inner, config.mlp_bias),
        ("mlp.down_proj", "mlp.down", 0, hidden, config.mlp_bias),
    ]
    slots = {
        "input_layernorm.weight": Slot("input_norm.weight", 0, hidden),
        "post_attention_layernorm.weight": Slot("post_norm.weight", 0, hidden),
    }
    for theirs, ours, start, rows, bias in linears:
        slots[f"{theirs}.weight"] = Slot(f"{ours}.weight", start, rows)
        if bias:
            slots[f"{theirs}.bias"] = Slot(f"{ours}.bias", start, rows)
    if config.qk_norm:
        for norm in ("q_norm", "k_norm"):
            slots[f"self_attn.{norm}.weight"] = Slot(f"attention.{norm}.weight", 0, config.head_dim)
    return slots


def load_decoder(
    folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> Decoder:
    """The decoder of `folder`, ready to run. Raises `CheckpointError` by tensor name."""
    model = Decoder(config, dtype)
    parameters = dict(model.named_parameters())
    slots = checkpoint_map(config)
    with ExitStack() as stack:
        tensors = _Tensors(folder, stack)
        for name, slot in slots.items():
            target = parameters[slot.parameter].data.narrow(0, slot.start, slot.rows)
            target.copy_(_checked(folder, name, tensors[name], target))
    if config.tied_embeddings:
        model.head.weight.data.copy_(model.embed.data)
    model.to(device).eval()
    if device.type == "cpu":
        pack_linears(model, dtype)
    return model


def _checked(folder: Path, name: str, tensor: Tensor, target: Tensor) -> Tensor:
    if tensor.shape != target.shape:
        raise CheckpointError(
            f"{folder}: the tensor {name} has shape {list(tensor.shape)} where config.json calls "
            f"for {list(target.shape)}: use the config.json that belongs to these weights."
        )
    return tensor


class _Tensors:
    """The tensors of all safetensors files of a folder, by name, read when asked for."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.handles: dict[str, Any] = {}
        for path in safetensors_files(folder):
            try:
                handle = stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    f"{path} cannot be read ({error}): it is missing or truncated, restore it."
                ) from None
            self.handles.update(dict.fromkeys(handle.keys(), handle))

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.handles:
            raise CheckpointError(
                f"{self.folder} lacks the tensor {name}: use weights that belong to its "
                "config.json."
            )
        return self.handles[name].get_tensor(name)


def safetensors_files(folder: Path) -> Iterator[Path]:
    """The weight files that the folder's index names, or its only one."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict):
            raise CheckpointError(f"{index} holds no weight_map: restore the file.")
        yield from (folder / name for name in sorted(set(names.values())))
        return
    yield folder / "model.safetensors"
