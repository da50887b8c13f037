"""Tiny random heads in exactly the layouts they are published in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from tandem.drafting.held import HeldStates
from tandem.request import Request

HIDDEN, VOCAB, INNER, HEADS, KV_HEADS = 48, 96, 80, 4, 2


class Shape(NamedTuple):
    """Of the target, which the head's layer has too."""

    hidden: int = HIDDEN
    vocab: int = VOCAB
    inner: int = INNER
    heads: int = HEADS
    kv_heads: int = KV_HEADS


TINY = Shape()
DEMO = Shape(512, 4096, 1408, 8, 4)
LAYER_IDS = {"eagle3": [0, 1], "eagle31": [0, 2], "peagle": [0, 2]}
METHODS = {
    "eagle": "eagle",
    "eagle3": "eagle3",
    "eagle31": "eagle3",
    "peagle": "eagle3",
    "mtp": "mtp",
    "mtp3": "mtp",
    "medusa": "medusa",
    "mlp_speculator": "mlp_speculator",
    "mlp_tied": "mlp_speculator",
}
"""`speculative_method` of each published layout."""
ROPE = 500.0  # of the head that has one of its own


def attention(prefix: str, of: Shape, width: int, bias: bool = False) -> dict[str, list[int]]:
    """Names and shapes of q, k, v, o and the MLP."""
    size = of.hidden // of.heads
    shapes = {
        f"{prefix}.self_attn.q_proj.weight": [of.heads * size, width],
        f"{prefix}.self_attn.k_proj.weight": [of.kv_heads * size, width],
        f"{prefix}.self_attn.v_proj.weight": [of.kv_heads * size, width],
        f"{prefix}.self_attn.o_proj.weight": [of.hidden, of.heads * size],
        f"{prefix}.mlp.gate_proj.weight": [of.inner, of.hidden],
        f"{prefix}.mlp.up_proj.weight": [of.inner, of.hidden],
        f"{prefix}.mlp.down_proj.weight": [of.hidden, of.inner],
        f"{prefix}.post_attention_layernorm.weight": [of.hidden],
    }
    if bias:
        for name, rows in (("q", of.heads), ("k", of.kv_heads), ("v", of.kv_heads)):
            shapes[f"{prefix}.self_attn.{name}_proj.bias"] = [rows * size]
    return shapes


def _config(of: Shape, **own: Any) -> dict[str, Any]:
    return {
        "hidden_size": of.hidden,
        "intermediate_size": of.inner,
        "num_attention_heads": of.heads,
        "num_key_value_heads": of.kv_heads,
        "rms_norm_eps": 1e-6,
        "vocab_size": of.vocab,
    } | own


def layout(method: str, of: Shape) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """config.json and the tensors' shapes."""
    hidden, vocab, own_vocab = of.hidden, of.vocab, draft_vocab(of.vocab)
    if method == "eagle":
        shapes = attention("layers.0", of, hidden) | {
            "fc.weight": [hidden, 2 * hidden],
            "fc.bias": [hidden],
            "embed_tokens.weight": [vocab, hidden],
        }
        return _config(of, architectures=["LlamaForCausalLM"], bias=True), shapes
    if method in ("eagle3", "eagle31"):
        ids = LAYER_IDS[method]
        shapes = attention("midlayer", of, 2 * hidden) | {
            "fc.weight": [hidden, len(ids) * hidden],
            "midlayer.hidden_norm.weight": [hidden],
            "midlayer.input_layernorm.weight": [hidden],
            "norm.weight": [hidden],
            "lm_head.weight": [own_vocab, hidden],
        }
        config = _config(
            of,
            architectures=["LlamaForCausalLMEagle3"],
            draft_vocab_size=own_vocab,
            eagle_config={"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": ids},
        )
        if method == "eagle31":
            shapes |= {f"fc_norm.{index}.weight": [hidden] for index in range(len(ids))}
            config |= {"fc_norm": True, "norm_output": True}
        return config, shapes
    if method == "peagle":
        return _speculators(of, own_vocab)
    if METHODS[method] == "mtp":
        count = 1 if method == "mtp" else 3
        norms = ("token_layernorm", "hidden_layernorm", "input_layernorm", "final_layernorm")
        shapes = {}
        for prefix in (f"model.mtp_layers.{index}" for index in range(count)):
            shapes |= attention(prefix, of, hidden, bias=True)
            shapes |= {f"{prefix}.{n}.weight": [hidden] for n in norms}
            shapes[f"{prefix}.input_proj.weight"] = [hidden, 2 * hidden]
        own = {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": count}
        return _config(of, **own), shapes
    if method == "medusa":
        shapes = {}
        for head in range(3):
            shapes[f"{head}.0.linear.weight"] = [hidden, hidden]
            shapes[f"{head}.0.linear.bias"] = [hidden]
            shapes[f"{head}.1.weight"] = [vocab, hidden]
        return {"medusa_num_heads": 5, "medusa_num_layers": 1}, shapes
    shapes = {}
    tied = method == "mlp_tied"
    for stage in range(3):
        shapes[f"speculator.emb.{stage}.weight"] = [vocab, 32]
        shapes[f"speculator.proj.{stage}.weight"] = [32, hidden if stage == 0 else 32]
        shapes[f"speculator.head.{stage}.weight"] = [vocab, 32]
        shapes[f"speculator.ln.{stage}.weight"] = [32]
        shapes[f"speculator.ln.{stage}.bias"] = [32]
    config = {
        "model_type": "mlp_speculator",
        "vocab_size": of.vocab,
        "emb_dim": hidden,
        "inner_dim": 32,
        "n_predict": 3,
        "tie_weights": tied,
        "scale_input": True,
    }
    if tied:  # only what differs: the first stage, and the second's projection
        kept = [name for name in shapes if ".0." in name] + ["speculator.proj.1.weight"]
        shapes = {name: shapes[name] for name in kept}
    return config, shapes


def _speculators(of: Shape, own_vocab: int) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """speculators' layout with all that it allows: two layers, norms, a rope and a mask of its own.

    Its embedding has a row more than the target's, for the mask.
    """
    hidden = of.hidden
    shapes = attention("layers.0", of, 2 * hidden) | attention("layers.1", of, hidden)
    shapes |= {
        "embed_tokens.weight": [of.vocab + 1, hidden],
        "fc.weight": [hidden, 2 * hidden],
        "input_norm.weight": [2 * hidden],
        "layers.0.hidden_norm.weight": [hidden],
        "layers.0.input_layernorm.weight": [hidden],
        "layers.1.input_layernorm.weight": [hidden],
        "norm.weight": [hidden],
        "lm_head.weight": [own_vocab, hidden],
        "mask_hidden": [1, 1, 2 * hidden],
    }
    layer = _config(of, num_hidden_layers=2, rope_theta=ROPE, model_type="llama")
    config = {
        "speculators_model_type": "peagle",
        "transformer_layer_config": layer | {"vocab_size": of.vocab + 1},
        "draft_vocab_size": own_vocab,
        "eagle_aux_hidden_state_layer_ids": LAYER_IDS["peagle"],
        "norm_before_fc": True,
        "norm_before_residual": True,
        "mask_token_id": of.vocab,
    }
    return config, shapes


def draft_vocab(vocab: int) -> int:
    """EAGLE-3's own vocabulary is a part of the target's."""
    return vocab * 2 // 3


def make_head(
    folder: Path, method: str, seed: int = 5, shape: Shape = TINY, **overrides: Any
) -> Path:
    """Writes a random head; Medusa's as a pickled file, as its authors do. Returns the folder."""
    config, shapes = layout(method, shape)
    vocab = shape.vocab
    torch.manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, size in shapes.items():
        norm = "norm" in name or ".ln." in name
        tensors[name] = torch.randn(size) * 0.2 + (norm and name.endswith("weight"))
    if METHODS[method] == "eagle3":
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


def drafting(method: str, folder: Path) -> dict[str, Any]:
    """The parameters that use a head."""
    return {"speculative_method": METHODS[method], "draft_model": folder}


def rows_of(held: HeldStates, request: Request) -> int:
    """How many hidden states of a request wait."""
    held._sort()
    found = held._held.get(request)
    return found.rows if found else 0
