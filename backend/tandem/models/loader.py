"""Reads a Hugging Face checkpoint folder into a decoder: one mapping of names, every tensor
checked by name and shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tandem.cpu.linear import use_kernels
from tandem.errors import CheckpointError
from tandem.models.config import ModelConfig, read_json
from tandem.models.decoder import Decoder
from tandem.models.layers import Embedding, Linear
from tandem.models.shard import WHOLE, Cut, Shard, local_config, source


class Slot(NamedTuple):
    """Where a checkpoint tensor, or a rank's part of it, goes: rows of a decoder's parameter."""

    parameter: str
    start: int
    rows: int
    cut: Cut


def checkpoint_map(config: ModelConfig) -> dict[str, Slot]:
    """Checkpoint name to slot, for every tensor the decoder needs. config: the decoder's own."""
    hidden, vocab = config.hidden_size, config.vocab_size
    slots = {
        "model.embed_tokens.weight": Slot("embed.weight", 0, vocab, Cut.VOCABULARY),
        "model.norm.weight": Slot("norm.weight", 0, hidden, Cut.NOT),
    }
    if not config.tied_embeddings:
        slots["lm_head.weight"] = Slot("head.weight", 0, vocab, Cut.VOCABULARY)
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
        ("self_attn.q_proj", "attention.qkv", 0, query, config.qkv_bias, Cut.ROWS),
        ("self_attn.k_proj", "attention.qkv", query, key, config.qkv_bias, Cut.KV_ROWS),
        ("self_attn.v_proj", "attention.qkv", query + key, key, config.qkv_bias, Cut.KV_ROWS),
        ("self_attn.o_proj", "attention.out", 0, hidden, config.out_bias, Cut.COLUMNS),
        ("mlp.gate_proj", "mlp.gate_up", 0, inner, config.mlp_bias, Cut.ROWS),
        ("mlp.up_proj", "mlp.gate_up", inner, inner, config.mlp_bias, Cut.ROWS),
        ("mlp.down_proj", "mlp.down", 0, hidden, config.mlp_bias, Cut.COLUMNS),
    ]
    slots = {
        "input_layernorm.weight": Slot("input_norm.weight", 0, hidden, Cut.NOT),
        "post_attention_layernorm.weight": Slot("post_norm.weight", 0, hidden, Cut.NOT),
    }
    for theirs, ours, start, rows, bias, cut in linears:
        slots[f"{theirs}.weight"] = Slot(f"{ours}.weight", start, rows, cut)
        if bias:
            of_sum = Cut.FIRST if cut is Cut.COLUMNS else cut
            slots[f"{theirs}.bias"] = Slot(f"{ours}.bias", start, rows, of_sum)
    if config.qk_norm:
        for norm in ("q_norm", "k_norm"):
            slots[f"self_attn.{norm}.weight"] = Slot(
                f"attention.{norm}.weight", 0, config.head_dim, Cut.NOT
            )
    return slots


def load_decoder(
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    shard: Shard = WHOLE,
    eights: bool = False,
) -> Decoder:
    """The decoder of `folder`, or a rank's part of it, ready to run: only that part is read.
    eights: as in `use_kernels`.

    Raises `CheckpointError` by tensor name.
    """
    local = local_config(config, shard)
    with device:  # read to where it stays
        model = Decoder(local, dtype)
    parameters = dict(model.named_parameters())
    with ExitStack() as stack:
        tensors = _Tensors(folder, stack)
        whole = checkpoint_map(config)
        for name, slot in checkpoint_map(local).items():
            target = parameters[slot.parameter].data.narrow(0, slot.start, slot.rows)
            wanted = [whole[name].rows, *_whole_width(parameters[slot.parameter], slot.cut, shard)]
            _fill(target, tensors.part(name, wanted, slot.cut, config, shard))
    if config.tied_embeddings and device.type == "cpu":  # whose kernels lay the head out anew
        model.head.weight.data.copy_(model.embed.weight.data)
    elif config.tied_embeddings:
        model.head.weight = model.embed.weight
    model.eval()
    if device.type == "cpu":
        use_kernels(model, dtype, eights)
    return model


def load_tables(
    folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> tuple[Embedding, Linear]:
    """A model's whole embedding and head alone."""
    embed = Embedding(config.vocab_size, config.hidden_size, dtype)
    head = Linear(config.hidden_size, config.vocab_size, False, dtype)
    shape = [config.vocab_size, config.hidden_size]
    names = ["model.embed_tokens.weight"]
    names.append(names[0] if config.tied_embeddings else "lm_head.weight")
    with ExitStack() as stack:
        tensors = _Tensors(folder, stack)
        for weight, name in zip((embed.weight, head.weight), names, strict=True):
            _fill(weight.data, tensors.part(name, shape, Cut.NOT, config, WHOLE))
    return embed.to(device), head.to(device)


def _whole_width(parameter: Tensor, cut: Cut, shard: Shard) -> list[int]:
    """The other dimensions of the checkpoint's tensor."""
    width = list(parameter.shape[1:])
    return [width[0] * shard.size] if cut is Cut.COLUMNS else width


def _fill(target: Tensor, part: Tensor | None) -> None:
    """A part may be missing or too short (see `Cut`): zeros stand for the rest."""
    rows = 0 if part is None else part.shape[0]
    if part is not None:
        target[:rows].copy_(part)
    target[rows:].zero_()


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

    def part(
        self, name: str, wanted: Sequence[int], cut: Cut, config: ModelConfig, shard: Shard
    ) -> Tensor | None:
        """A rank's part of a tensor whose whole shape must be `wanted`."""
        if name not in self.handles:
            raise CheckpointError(
                f"{self.folder} lacks the tensor {name}: use weights that belong to its "
                "config.json."
            )
        stored = self.handles[name].get_slice(name)
        shape = stored.get_shape()
        if shape != list(wanted):
            raise CheckpointError(
                f"{self.folder}: the tensor {name} has shape {shape} where config.json calls "
                f"for {list(wanted)}: use the config.json that belongs to these weights."
            )
        where = source(cut, shape, config, shard)
        part: Tensor | None = None if where is None else stored[where]
        return part


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
