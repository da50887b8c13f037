"""Tiny random heads in exactly the layouts they are published in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

HIDDEN, VOCAB, INNER, HEADS, KV_HEADS = 48, 96, 80, 4, 2
LAYER_IDS = [0, 1]
METHODS = ("eagle", "eagle3", "mtp", "medusa", "mlp_speculator")


def attention(prefix: str, width: int = HIDDEN, bias: bool = False) -> dict[str, list[int]]:
    """Names and shapes of q, k, v, o and the MLP."""
    size = HIDDEN // HEADS
    shapes = {
        f"{prefix}.self_attn.q_proj.weight": [HEADS * size, width],
        f"{prefix}.self_attn.k_proj.weight": [KV_HEADS * size, width],
        f"{prefix}.self_attn.v_proj.weight": [KV_HEADS * size, width],
        f"{prefix}.self_attn.o_proj.weight": [HIDDEN, HEADS * size],
        f"{prefix}.mlp.gate_proj.weight": [INNER, HIDDEN],
        f"{prefix}.mlp.up_proj.weight": [INNER, HIDDEN],
        f"{prefix}.mlp.down_proj.weight": [HIDDEN, INNER],
        f"{prefix}.post_attention_layernorm.weight": [HIDDEN],
    }
    if bias:
        for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            shapes[f"{prefix}.self_attn.{name}_proj.bias"] = [rows * size]
    return shapes


def _config(vocab: int, **own: Any) -> dict[str, Any]:
    return {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-6,
        "vocab_size": vocab,
    } | own


def layout(method: str, vocab: int) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """config.json and the tensors' shapes."""
    own_vocab = draft_vocab(vocab)
    if method == "eagle":
        shapes = attention("layers.0") | {
            "fc.weight": [HIDDEN, 2 * HIDDEN],
            "fc.bias": [HIDDEN],
            "embed_tokens.weight": [vocab, HIDDEN],
        }
        return _config(vocab, architectures=["LlamaForCausalLM"], bias=True), shapes
    if method == "eagle3":
        shapes = attention("midlayer", 2 * HIDDEN) | {
            "fc.weight": [HIDDEN, len(LAYER_IDS) * HIDDEN],
            "midlayer.hidden_norm.weight": [HIDDEN],
            "midlayer.input_layernorm.weight": [HIDDEN],
            "norm.weight": [HIDDEN],
            "lm_head.weight": [own_vocab, HIDDEN],
        }
        ids = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": LAYER_IDS}
        config = _config(
            vocab,
            architectures=["LlamaForCausalLMEagle3"],
            draft_vocab_size=own_vocab,
            eagle_config=ids,
        )
        return config, shapes
    if method == "mtp":
        prefix = "model.mtp_layers.0"
        norms = ("token_layernorm", "hidden_layernorm", "input_layernorm", "final_layernorm")
        shapes = attention(prefix, bias=True) | {f"{prefix}.{n}.weight": [HIDDEN] for n in norms}
        shapes[f"{prefix}.input_proj.weight"] = [HIDDEN, 2 * HIDDEN]
        return _config(vocab, architectures=["MiMoForCausalLM"], num_nextn_predict_layers=1), shapes
    if method == "medusa":
        shapes = {}
        for head in range(3):
            shapes[f"{head}.0.linear.weight"] = [HIDDEN, HIDDEN]
            shapes[f"{head}.0.linear.bias"] = [HIDDEN]
            shapes[f"{head}.1.weight"] = [vocab, HIDDEN]
        return {"medusa_num_heads": 5, "medusa_num_layers": 1}, shapes
    shapes = {}
    for stage in range(3):
        shapes[f"speculator.emb.{stage}.weight"] = [vocab, 32]
        shapes[f"speculator.proj.{stage}.weight"] = [32, HIDDEN if stage == 0 else 32]
        shapes[f"speculator.head.{stage}.weight"] = [vocab, 32]
        shapes[f"speculator.ln.{stage}.weight"] = [32]
        shapes[f"speculator.ln.{stage}.bias"] = [32]
    config = {
        "model_type": "mlp_speculator",
        "vocab_size": vocab,
        "emb_dim": HIDDEN,
        "inner_dim": 32,
        "n_predict": 3,
        "tie_weights": False,
        "scale_input": True,
    }
    return config, shapes


def draft_vocab(vocab: int) -> int:
    """EAGLE-3's own vocabulary is a part of the target's."""
    return vocab * 2 // 3


def make_head(
    folder: Path, method: str, seed: int = 5, vocab: int = VOCAB, **overrides: Any
) -> Path:
    """Writes a random head; Medusa's as a pickled file, as its authors do. Returns the folder."""
    config, shapes = layout(method, vocab)
    torch.manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        norm = "norm" in name or ".ln." in name
        tensors[name] = torch.randn(shape) * 0.2 + (norm and name.endswith("weight"))
    if method == "eagle3":
        chosen = torch.randperm(vocab)[: draft_vocab(vocab)].sort().values
        tensors["d2t"] = chosen - torch.arange(len(chosen))
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, chosen, True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | overrides))
    if method == "medusa":
        torch.save(tensors, folder / "medusa_lm_head.pt")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder
