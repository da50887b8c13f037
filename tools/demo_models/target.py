"""The target: a small Llama trained on the library's source, short sequences first."""

from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor
from transformers import LlamaForCausalLM

from .corpus import read_corpus
from .data import encode_documents, sequential_rows, shuffled_blocks
from .measure import cross_entropy
from .models import (
    deepened,
    load_model,
    load_tokenizer,
    new_model,
    parameter_count,
    save_model,
    target_config,
)
from .tokenizer import train_tokenizer
from .training import START, Plan, State, next_token_loss, train

TOKENS_A_STEP = 4096
REFINED_LENGTH = 512
# Each pair: from this share of the budget on, so many tokens a sequence (or layers). Short
# sequences and a shallow model learn the same for less while there is much to learn.
_LENGTHS = ((0.95, 1024), (0.6, 512), (0.0, 256))
_DEPTHS = ((0.0, 2), (0.15, 4), (0.5, 8))

console = Console()


def sequence_length(fraction: float) -> int:
    """Tokens a sequence after `fraction` of the budget."""
    return next(length for since, length in _LENGTHS if fraction >= since)


def train_target(folder: Path, budget_s: float, seed: int) -> None:
    """Trains tokenizer and target; `folder` holds the newest checkpoint at any time."""
    corpus = read_corpus()
    tokenizer = train_tokenizer(document.text for document in corpus.train)
    generator = torch.Generator().manual_seed(seed)
    blocks = shuffled_blocks(encode_documents(tokenizer, corpus.train), generator)
    held_out = sequential_rows(encode_documents(tokenizer, corpus.held_out), 512)[::16]
    model, state = new_model(target_config(_DEPTHS[0][1]), seed), START
    ends = [since for since, _ in _DEPTHS[1:]] + [1.0]
    for (_, layers), end in zip(_DEPTHS, ends, strict=True):
        model = deepened(model, target_config(layers))
        console.print(f"{layers} layers, {parameter_count(model):,} parameters")

        def checkpoint(state: State, model: LlamaForCausalLM = model) -> None:
            save_model(model, tokenizer, folder)
            console.print(_report(state, cross_entropy(model, held_out)))

        def loss_at(fraction: float, model: LlamaForCausalLM = model) -> Tensor:
            return next_token_loss(model, _rows(blocks, sequence_length(fraction)))

        state = train(model, loss_at, Plan(budget_s), checkpoint, state, end)


def refine_target(folder: Path, start: Path, budget_s: float, seed: int) -> None:
    """Trains the target in `start` further, at half the rates: as long as the text is worth it."""
    corpus, tokenizer = read_corpus(), load_tokenizer(start)
    blocks = shuffled_blocks(
        encode_documents(tokenizer, corpus.train), torch.Generator().manual_seed(seed)
    )
    held_out = sequential_rows(encode_documents(tokenizer, corpus.held_out), 512)[::16]
    model = load_model(start)

    def checkpoint(state: State) -> None:
        save_model(model, tokenizer, folder)
        console.print(_report(state, cross_entropy(model, held_out)))

    rates = Plan(budget_s)
    plan = Plan(budget_s, rates.muon_rate / 2, rates.adamw_rate / 2)
    train(model, lambda _: next_token_loss(model, _rows(blocks, REFINED_LENGTH)), plan, checkpoint)


def _report(state: State, held_out: float) -> str:
    tokens = state.steps * TOKENS_A_STEP
    return (
        f"{state.seconds:.0f} s, {state.steps} steps, {tokens:,} tokens, "
        f"training loss {state.loss:.3f}, held-out loss {held_out:.3f}"
    )


def _rows(blocks: Iterator[Tensor], length: int) -> Tensor:
    """TOKENS_A_STEP tokens as [rows, length]."""
    rows: list[Tensor] = []
    while sum(row.numel() for row in rows) < TOKENS_A_STEP:
        rows.append(next(blocks).view(-1, length))
    return torch.cat(rows)
