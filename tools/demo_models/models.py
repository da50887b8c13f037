"""The two shapes, and how a model is written to its folder."""

import json
import os
import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from .tokenizer import END_OF_TEXT_ID, VOCABULARY_SIZE, save_tokenizer

MAX_POSITIONS = 2048
_LAST_MATRICES = ("o_proj.weight", "down_proj.weight")


def target_config(layers: int = 8) -> LlamaConfig:
    """25.7M parameters with 8 layers, 8.0M with the 2 that its training begins with."""
    return _config(hidden=512, intermediate=1408, layers=layers, heads=8)


def draft_config(layers: int = 1) -> LlamaConfig:
    """1.8M parameters with one layer. A draft's time is its depth: shallow beats narrow."""
    return _config(hidden=256, intermediate=704, layers=layers, heads=4)


def new_model(config: LlamaConfig, seed: int) -> LlamaForCausalLM:
    """A model with fp32 weights drawn from `seed`.

    Layers start as the identity (their last matrices are zero): a short training gains by it.
    """
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith(_LAST_MATRICES):
            torch.nn.init.zeros_(parameter)
    return model


def deepened(model: LlamaForCausalLM, config: LlamaConfig) -> LlamaForCausalLM:
    """A model with more layers and the same outputs.

    An added layer copies one below it, but for its last matrices: they are zero, so that it begins
    as the identity.
    """
    deeper, old = new_model(config, seed=0), model.model.layers
    deeper.load_state_dict(model.state_dict(), strict=False)
    for index in range(len(old), config.num_hidden_layers):
        copied = old[index % len(old)].state_dict()
        kept = {name: p for name, p in copied.items() if not name.endswith(_LAST_MATRICES)}
        deeper.model.layers[index].load_state_dict(kept, strict=False)
    return deeper


def parameter_count(model: LlamaForCausalLM) -> int:
    """Parameters, the tied embedding counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def save_model(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes weights (bf16), configuration and tokenizer, so that a reader never sees half a model.

    Everything goes to a folder beside `folder` first; then each file is renamed into place.
    """
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    copy = LlamaForCausalLM(model.config).to(torch.bfloat16)
    copy.load_state_dict(model.state_dict())
    copy.save_pretrained(temporary)
    save_tokenizer(tokenizer, temporary, MAX_POSITIONS)
    _write_generation_config(temporary)
    folder.mkdir(parents=True, exist_ok=True)
    for file in temporary.iterdir():
        file.chmod(0o644)
        file.replace(folder / file.name)
    temporary.rmdir()


def load_model(folder: Path) -> LlamaForCausalLM:
    """The model of a folder with fp32 weights, ready to be measured (or trained further)."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model's folder."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def _config(hidden: int, intermediate: int, layers: int, heads: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=hidden // heads,
        max_position_embeddings=MAX_POSITIONS,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=END_OF_TEXT_ID,
        pad_token_id=END_OF_TEXT_ID,
        attention_bias=False,
        mlp_bias=False,
    )


def _write_generation_config(folder: Path) -> None:
    config = {f"{role}_token_id": END_OF_TEXT_ID for role in ("bos", "eos", "pad")}
    (folder / "generation_config.json").write_text(
        json.dumps(config, indent=2) + "\n", encoding="utf-8"
    )
