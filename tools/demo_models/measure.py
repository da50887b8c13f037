"""What the pair is worth: held-out cross-entropy and the acceptance of drafted tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from .tokenizer import END_OF_TEXT_ID


class Acceptance(NamedTuple):
    """Counts of speculative rounds, summed over prompts."""

    rounds: int
    drafted: int
    accepted: int

    @property
    def rate(self) -> float:
        """Accepted tokens per drafted token."""
        return self.accepted / max(self.drafted, 1)

    @property
    def tokens_a_round(self) -> float:
        """Tokens a round yields: the accepted ones and the target's own."""
        return 1 + self.accepted / max(self.rounds, 1)


@torch.no_grad()
def cross_entropy(model: LlamaForCausalLM, rows: Tensor, batch: int = 4) -> float:
    """Mean cross-entropy (nats a token) of rows [rows, length], a row's first token not counted."""
    model.eval()
    total = 0.0
    for part in rows.split(batch):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=part, use_cache=False).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1).float(), part[:, 1:].flatten(), reduction="sum")
        total += loss.item()
    return total / (rows.shape[0] * (rows.shape[1] - 1))


def acceptance(
    draft: LlamaForCausalLM, rows: Tensor, prompt_length: int, new_tokens: int, k: int
) -> Acceptance:
    """Greedy speculative decoding with chains of `k`, counted on the target's greedy texts `rows`.

    Greedy speculation emits the target's own greedy text whatever is drafted, and a drafted token
    is accepted only while the draft has agreed with that text so far. So one forward of the draft
    over the text says what every round would have accepted. rows [rows, length] are prompt_length
    tokens of prompt, new_tokens of text, and `k` or more that complete a round begun before them.
    """
    matches = _agreement(draft, rows)
    total = Acceptance(0, 0, 0)
    for row, agreed in zip(rows.tolist(), matches.tolist(), strict=True):
        counts = count_rounds(agreed, _text_end(row, prompt_length, new_tokens), prompt_length, k)
        total = Acceptance(*(a + b for a, b in zip(total, counts, strict=True)))
    return total


def count_rounds(agreed: Sequence[bool], text_end: int, prompt_length: int, k: int) -> Acceptance:
    """Walks the rounds of one row: agreed[i] says whether the draft would have written token i."""
    rounds = accepted = 0
    position = prompt_length + 1  # the prompt's own forward gives the first token
    while position < text_end:
        run = 0
        while run < k and agreed[position + run]:
            run += 1
        rounds, accepted, position = rounds + 1, accepted + run, position + run + 1
    return Acceptance(rounds, rounds * k, accepted)


@torch.no_grad()
def _agreement(draft: LlamaForCausalLM, rows: Tensor) -> Tensor:
    """[rows, length] booleans: the draft, given what stands before, would write the row's token."""
    draft.eval()
    guesses = torch.cat(
        [draft(input_ids=part, use_cache=False).logits.argmax(-1) for part in rows.split(8)]
    )
    return F.pad(guesses[:, :-1] == rows[:, 1:], (1, 0))


def _text_end(row: Sequence[int], prompt_length: int, new_tokens: int) -> int:
    """Where rounds stop beginning: after new_tokens, or after the end-of-text token."""
    stop = prompt_length + new_tokens
    for position in range(prompt_length, stop):
        if row[position] == END_OF_TEXT_ID:
            return position + 1
    return stop
