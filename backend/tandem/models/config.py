"""What a checkpoint's config.json says, reduced to what the decoder needs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tandem.errors import CheckpointError

FAMILIES = {
    "MiMoForCausalLM": "qwen2",  # with modules for MTP beside its layers
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
DEFAULT_ROPE_THETA = 10000.0


class RopeScaling(NamedTuple):
    """Llama 3's frequency scaling."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a dense decoder: Llama, Mistral, Qwen2 (MiMo too) or Qwen3."""

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    max_position: int
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied_embeddings: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_window: int | None
    dtype: str
    eos_ids: tuple[int, ...]

    @property
    def kv_width(self) -> int:
        """Numbers a token's keys and values take in one layer."""
        return 2 * self.num_kv_heads * self.head_dim


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a checkpoint's file. Raises `CheckpointError`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} does not exist: point the parameter (model or draft_model) at a checkpoint "
            "folder in Hugging Face layout (config.json, safetensors, tokenizer.json); names of a "
            "hub are not fetched."
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): restore the file.") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is not a JSON object: restore the file.")
    return value


def read_model_config(folder: Path) -> ModelConfig:
    """Reads `folder`/config.json. Raises `CheckpointError` for what the decoder does not do."""
    raw = read_json(folder / "config.json")
    architectures = raw.get("architectures") or ["none"]
    architecture = architectures[0] if isinstance(architectures, list) else architectures
    family = FAMILIES.get(str(architecture))
    if family is None:
        raise CheckpointError(
            f"{folder} holds the architecture {architecture}, which the native engine does not "
            f"run: use one of {', '.join(FAMILIES)}, or set engine to vllm."
        )
    try:
        return _parse(folder, raw, family)
    except KeyError as error:
        raise CheckpointError(f"{folder}/config.json lacks {error}: restore the file.") from None
    except (TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise CheckpointError(
            f"{folder}/config.json holds a value of the wrong kind ({error}): restore the file."
        ) from None


def _parse(folder: Path, raw: dict[str, Any], family: str) -> ModelConfig:
    _refuse_unsupported(folder, raw)
    heads = int(raw["num_attention_heads"])
    theta, scaling = read_rope(folder, raw)
    bias = bool(raw.get("attention_bias", False))
    return ModelConfig(
        family=family,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or raw["hidden_size"] // heads),
        intermediate_size=int(raw["intermediate_size"]),
        norm_eps=float(raw["rms_norm_eps"]),
        max_position=int(raw["max_position_embeddings"]),
        rope_theta=theta,
        rope_scaling=scaling,
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or bias,
        out_bias=family != "qwen2" and bias,
        mlp_bias=bool(raw.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        sliding_window=_sliding_window(raw, family),
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        eos_ids=_eos_ids(folder, raw),
    )


def _refuse_unsupported(folder: Path, raw: dict[str, Any]) -> None:
    wanted = {"hidden_act": "silu", "partial_rotary_factor": 1.0, "quantization_config": None}
    for key, value in wanted.items():
        if raw.get(key, value) != value:
            raise CheckpointError(
                f"{folder}/config.json sets {key} to {raw[key]!r}, which the native engine does "
                f"not run: use a checkpoint with {key} {value!r}, or set engine to vllm."
            )


def read_rope(folder: Path, raw: dict[str, Any]) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from `rope_parameters` (newer files) or `rope_theta`, `rope_scaling`.
    Raises `CheckpointError` for a scaling that the decoder does not do."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or raw.get("rope_theta") or DEFAULT_ROPE_THETA)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise CheckpointError(
            f"{folder}/config.json asks for the RoPE type {kind!r}, which the native engine does "
            "not run: use a checkpoint with the type default or llama3."
        )
    return theta, RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_max_position=int(rope["original_max_position_embeddings"]),
    )


def _sliding_window(raw: dict[str, Any], family: str) -> int | None:
    if family.startswith("qwen") and not raw.get("use_sliding_window", False):
        return None
    window = raw.get("sliding_window")
    return int(window) if window else None


def _eos_ids(folder: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    """End-of-sequence ids of generation_config.json where it names them, else config.json's."""
    generation = folder / "generation_config.json"
    ids = read_json(generation).get("eos_token_id") if generation.exists() else None
    ids = raw.get("eos_token_id") if ids is None else ids
    if ids is None:
        return ()
    return tuple(int(i) for i in (ids if isinstance(ids, list) else [ids]))
