"""Models for the GPU's benchmark: random weights in the shape of a Llama, and a draft that agrees.

Of the target's layers only the first few do anything: the others' o_proj and down_proj are zero, so
that a draft of those few layers computes the same function at a fraction of the cost.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

TOKENIZER = Path(__file__).parents[1] / "model_repository" / "tandem" / "1" / "target"
SPREAD = 0.02  # standard deviation of the weights


class Shape(NamedTuple):
    """Of a Llama."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    draft_layers: int


SHAPES = {
    "8b": Shape(4096, 14336, 32, 32, 8, 128256, 4),
    "tiny": Shape(64, 128, 4, 4, 2, 4096, 1),  # for a try without a GPU
}


def make_pair(shape: Shape, target: Path, draft: Path, device: torch.device) -> None:
    """Writes both checkpoints, in bfloat16. device: where numbers are drawn."""
    torch.manual_seed(0)
    index: dict[Path, dict[str, str]] = {target: {}, draft: {}}
    for folder, layers in ((target, shape.layers), (draft, shape.draft_layers)):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(_config(shape, layers)), encoding="utf-8")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((TOKENIZER / name).read_bytes())
    for number in range(-1, shape.layers):
        tensors = _ends(shape, device) if number < 0 else _layer(shape, number, device)
        name = "ends.safetensors" if number < 0 else f"layer-{number}.safetensors"
        save_file(tensors, target / name, {"format": "pt"})
        index[target] |= dict.fromkeys(tensors, name)
        if number < shape.draft_layers:
            (draft / name).hardlink_to(target / name)
            index[draft] |= dict.fromkeys(tensors, name)
    for folder, weights in index.items():
        text = json.dumps({"metadata": {}, "weight_map": weights})
        (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def read_in_a_pass(folder: Path) -> int:
    """Bytes of a checkpoint's weights, but for the embeddings, of which a row is read."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    whole = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return whole - 2 * int(config["vocab_size"]) * int(config["hidden_size"])


def _config(shape: Shape, layers: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden // shape.heads,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 0,
        "dtype": "bfloat16",
    }


def _random(device: torch.device, *shape: int) -> Tensor:
    return (SPREAD * torch.randn(shape, device=device)).bfloat16().cpu()


def _ends(shape: Shape, device: torch.device) -> dict[str, Tensor]:
    return {
        "model.embed_tokens.weight": _random(device, shape.vocabulary, shape.hidden),
        "model.norm.weight": torch.ones(shape.hidden, dtype=torch.bfloat16),
        "lm_head.weight": _random(device, shape.vocabulary, shape.hidden),
    }


def _layer(shape: Shape, number: int, device: torch.device) -> dict[str, Tensor]:
    kept = shape.kv_heads * shape.hidden // shape.heads
    sizes = {
        "self_attn.q_proj": (shape.hidden, shape.hidden),
        "self_attn.k_proj": (kept, shape.hidden),
        "self_attn.v_proj": (kept, shape.hidden),
        "self_attn.o_proj": (shape.hidden, shape.hidden),
        "mlp.gate_proj": (shape.inner, shape.hidden),
        "mlp.up_proj": (shape.inner, shape.hidden),
        "mlp.down_proj": (shape.hidden, shape.inner),
    }
    start = f"model.layers.{number}."
    found = {f"{start}{name}.weight": _random(device, *size) for name, size in sizes.items()}
    if number >= shape.draft_layers:
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            found[f"{start}{name}.weight"].zero_()
    for name in ("input_layernorm", "post_attention_layernorm"):
        found[f"{start}{name}.weight"] = torch.ones(shape.hidden, dtype=torch.bfloat16)
    return found
