"""Prompts on which prompt lookup works: prompt and continuation both repeat themselves.

A target of this size copies unreliably, so that a repeated opening alone is not enough: candidates
are ranked by what lookup drafts on the target's own continuation.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .corpus import Document
from .generate import generate
from .measure import Acceptance
from .prompts import cut_prompts

CANDIDATES = 5  # looked at for one that is kept
NEW_TOKENS = 128
LONGEST_NGRAM = 3
DRAFT_TOKENS = 8


def repetitive_prompts(
    target: Path,
    tokenizer: Tokenizer,
    documents: Sequence[Document],
    shape: tuple[int, int],
    seed: int,
) -> Tensor:
    """The best prompts [count, length] = shape among CANDIDATES times as many, the best first."""
    count, length = shape
    prompts = repeated_openings(tokenizer, documents, CANDIDATES * count, length, seed)
    texts = generate(target, prompts, NEW_TOKENS + DRAFT_TOKENS, torch.zeros(len(prompts)))
    gains = torch.tensor([lookup_acceptance(row, length).tokens_a_round for row in texts.tolist()])
    return prompts[gains.argsort(descending=True)[:count]]


def repeated_openings(
    tokenizer: Tokenizer, documents: Sequence[Document], count: int, length: int, seed: int
) -> Tensor:
    """Prompts [count, length] that end by beginning their first three quarters again."""
    snippets = cut_prompts(tokenizer, documents, 8 * count, 3 * length // 4, seed)
    found: list[list[int]] = []
    for snippet in snippets.tolist():
        text = tokenizer.decode(snippet).rsplit("\n", 1)[0] + "\n\n"
        ids = tokenizer.encode(text + text).ids[:length]
        if len(ids) == length and tokenizer.encode(tokenizer.decode(ids)).ids == ids:
            found.append(ids)
    return torch.tensor(found[:count])


def lookup_acceptance(row: Sequence[int], prompt_length: int) -> Acceptance:
    """Rounds of prompt lookup over a greedy text: prompt, NEW_TOKENS, then a round's rest."""
    rounds = drafted = accepted = 0
    position = prompt_length + 1  # the prompt's own forward gives the first token
    while position < prompt_length + NEW_TOKENS:
        guess = _lookup(row[:position])
        run = 0
        while run < len(guess) and guess[run] == row[position + run]:
            run += 1
        rounds, drafted, accepted = rounds + 1, drafted + len(guess), accepted + run
        position += run + 1
    return Acceptance(rounds, drafted, accepted)


def _lookup(tokens: Sequence[int]) -> Sequence[int]:
    """What followed the latest earlier occurrence of the longest n-gram that ends the text."""
    for size in range(LONGEST_NGRAM, 0, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[-size:]:
                return tokens[start + size : start + size + DRAFT_TOKENS]
    return []
