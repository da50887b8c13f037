"""Tiny random checkpoints in Hugging Face layout, made by transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

FAMILIES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}


def write_words(folder: Path, words: Sequence[str]) -> None:
    """A tokenizer whose tokens are these words; anything else is the last one."""
    vocab = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token=words[-1]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Words t0, t1, … are tokens 0, 1, …; anything else is the last token."""
    write_words(folder, [f"t{index}" for index in range(vocab_size)])


def make_checkpoint(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    vocab_size: int = 96,
    scale: float = 1.0,
    max_shard_size: str = "5GB",
    **overrides: Any,
) -> Path:
    """Writes a random model; `scale` sharpens its distributions. Returns the folder."""
    config_class, model_class = FAMILIES[family]
    shape: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.15,
        "eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": None,
        "sliding_window": None,
        "tie_word_embeddings": False,
    }
    if family == "qwen3":
        shape["head_dim"] = 16
    torch.manual_seed(seed)
    model = model_class(config_class(**shape | overrides))
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    if not model.config.tie_word_embeddings:
        model.lm_head.weight.data.mul_(scale)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    write_tokenizer(folder, vocab_size)
    return folder


def cut_vocabulary(source: Path, folder: Path, size: int) -> Path:
    """A copy of `source` that knows its first tokens alone."""
    shutil.copytree(source, folder)
    weights = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = weights[name][:size].contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
    write_tokenizer(folder, size)
    return folder


def perturb_checkpoint(source: Path, folder: Path, *, noise: float, seed: int = 0) -> Path:
    """A copy of `source` whose weights are off by `noise` of their own spread."""
    shutil.copytree(source, folder)
    generator = torch.Generator().manual_seed(seed)
    for path in folder.glob("*.safetensors"):
        weights = load_file(path)
        for weight in weights.values():
            offset = torch.randn(weight.shape, generator=generator)
            weight.add_(offset * weight.std() * noise)
        save_file(weights, path, {"format": "pt"})
    return folder
