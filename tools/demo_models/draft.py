"""The draft: a shallow model taught to continue as the target does, on the target's own texts.

A drafted token counts only if it is what the target writes, so that the corpus is the wrong text
to learn from: the draft sees the target's continuations, and its probabilities at every place.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor
from transformers import LlamaForCausalLM

from .corpus import read_corpus
from .data import BLOCK_TOKENS, encode_documents, shuffled_blocks
from .generate import Rollouts
from .measure import acceptance
from .models import (
    deepened,
    draft_config,
    load_model,
    load_tokenizer,
    new_model,
    parameter_count,
    save_model,
)
from .rollouts import MEASURED_TOKENS, PROMPT_TOKENS, greedy_texts, rollout_batches
from .training import Plan, State, next_token_loss, train

SEQUENCE_TOKENS = 256
ROWS_A_STEP = 16

console = Console()


class Recipe(NamedTuple):
    """What a distillation varies.

    corpus_share of the budget goes to the corpus, the rest to rollouts. The teacher's logits are
    divided by temperature: below 1, its likeliest token counts for more.
    """

    layers: int = 1
    budget_s: float = 600.0
    corpus_share: float = 0.25
    temperature: float = 0.7
    muon_rate: float = 5e-3


def distil(
    target: Path, rollouts: Rollouts, out: Path, recipe: Recipe, seed: int, start: Path | None
) -> None:
    """Trains a draft, or the one in `start` further (deeper, where the recipe has more layers), on
    the corpus, then on rollouts, and reports its acceptance as it goes."""
    tokenizer, corpus = load_tokenizer(target), read_corpus()
    if start is None:
        draft = new_model(draft_config(recipe.layers), seed)
        start_from_embedding(draft, load_model(target))
    else:
        draft = deepened(load_model(start), draft_config(recipe.layers))
    console.print(f"{parameter_count(draft):,} parameters, {len(rollouts.tokens)} rows, {recipe}")
    texts = greedy_texts(target, tokenizer, corpus.held_out, count=64, seed=1)
    generator = torch.Generator().manual_seed(seed)
    blocks = shuffled_blocks(encode_documents(tokenizer, corpus.train), generator)
    batches = rollout_batches(rollouts, ROWS_A_STEP, generator)
    fused_loss = torch.compile(distillation_loss)  # its small operators take half of a step

    def loss_at(fraction: float) -> Tensor:
        if fraction < recipe.corpus_share:
            return next_token_loss(draft, _corpus_rows(blocks))
        return fused_loss(draft, next(batches), recipe.temperature)

    def checkpoint(state: State) -> None:
        counts = acceptance(draft, texts, PROMPT_TOKENS, MEASURED_TOKENS, k=4)
        console.print(
            f"{state.seconds:.0f} s, {state.steps} steps, loss {state.loss:.3f}, "
            f"acceptance {counts.rate:.3f}, {counts.tokens_a_round:.2f} tokens a round"
        )
        save_model(draft, tokenizer, out)

    plan = Plan(recipe.budget_s, recipe.muon_rate, checkpoint_s=recipe.budget_s / 8)
    train(draft, loss_at, plan, checkpoint)


def distillation_loss(draft: LlamaForCausalLM, batch: Rollouts, temperature: float) -> Tensor:
    """Cross-entropy (nats a position) of the draft to the target's sharpened likeliest tokens,
    where the target wrote."""
    written = slice(PROMPT_TOKENS - 1, -1)
    hidden = draft.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
    logits = draft.lm_head(hidden[:, written]).float()
    teacher = F.softmax(batch.top_logits[:, written].float() / temperature, dim=-1)
    chosen = logits.gather(-1, batch.top_ids[:, written].long())
    return (logits.logsumexp(-1) - (teacher * chosen).sum(-1)).mean()


@torch.no_grad()
def start_from_embedding(draft: LlamaForCausalLM, target: LlamaForCausalLM) -> None:
    """The draft's embedding starts as the principal components of the target's."""
    own, other = draft.model.embed_tokens.weight, target.model.embed_tokens.weight
    left, values, _ = torch.linalg.svd(other.float(), full_matrices=False)
    components = left[:, : own.shape[1]] * values[: own.shape[1]]
    own.copy_(components * (own.std() / components.std()))


def _corpus_rows(blocks: Iterator[Tensor]) -> Tensor:
    count = ROWS_A_STEP * SEQUENCE_TOKENS // BLOCK_TOKENS
    return torch.cat([next(blocks).view(-1, SEQUENCE_TOKENS) for _ in range(count)])
