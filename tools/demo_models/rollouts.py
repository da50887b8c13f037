"""The target's continuations: what a draft learns from, and what its acceptance is counted on."""

import time
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.progress import Progress
from tokenizers import Tokenizer
from torch import Tensor

from .corpus import Document, read_corpus
from .generate import Rollouts, generate, read
from .models import load_model, load_tokenizer
from .prompts import cut_prompts

PROMPT_TOKENS = 128
NEW_TOKENS = 160
MEASURED_TOKENS = 128
LONGEST_DRAFT = 8  # a round that begins at the last measured token may draft so many
ROWS_AT_ONCE = 256
SAMPLED_SHARE = 0.25  # of the rows, at SAMPLED_TEMPERATURE: places greedy text does not visit
SAMPLED_TEMPERATURE = 0.7


def make_rollouts(target: Path, out: Path, budget_s: float, seed: int) -> int:
    """Has the target continue prompts of training files until the time is spent.

    Writes the rollouts to the file `out` as it goes; returns how many there are.
    """
    model, tokenizer, documents = load_model(target), load_tokenizer(target), read_corpus().train
    generator = torch.Generator().manual_seed(seed)
    parts: list[Rollouts] = []
    start = time.monotonic()
    with Progress() as bar:
        task = bar.add_task("rollouts", total=budget_s)
        while (spent := time.monotonic() - start) < budget_s:
            bar.update(task, completed=spent)
            part_seed = seed * 10_000 + len(parts)
            prompts = cut_prompts(tokenizer, documents, ROWS_AT_ONCE, PROMPT_TOKENS, part_seed)
            sampled = torch.rand(len(prompts), generator=generator) < SAMPLED_SHARE
            temperatures = sampled * SAMPLED_TEMPERATURE
            parts.append(read(model, generate(target, prompts, NEW_TOKENS, temperatures)))
            torch.save(list(_joined(parts)), out)
    return len(parts) * ROWS_AT_ONCE


def read_rollouts(files: list[Path]) -> Rollouts:
    """The rollouts of all files together."""
    return _joined([Rollouts(*torch.load(file)) for file in files])


def rollout_batches(
    rollouts: Rollouts, rows: int, generator: torch.Generator
) -> Iterator[Rollouts]:
    """Batches of `rows` rows without end, each epoch in another order."""
    while True:
        for chosen in torch.randperm(len(rollouts.tokens), generator=generator).split(rows):
            yield Rollouts(*(field[chosen] for field in rollouts))


def greedy_texts(
    target: Path, tokenizer: Tokenizer, documents: list[Document], count: int, seed: int
) -> Tensor:
    """Greedy continuations of `count` prompts.

    [count, PROMPT_TOKENS + MEASURED_TOKENS + LONGEST_DRAFT] tokens.
    """
    prompts = cut_prompts(tokenizer, documents, count, PROMPT_TOKENS, seed)
    return generate(target, prompts, MEASURED_TOKENS + LONGEST_DRAFT, torch.zeros(count))


def _joined(parts: list[Rollouts]) -> Rollouts:
    return Rollouts(*(torch.cat([part[i] for part in parts]) for i in range(3)))
