"""What heads learn from: rollouts, with the target's hidden states at every place.

Four heads learn for many epochs from the same texts, so the target reads them once, beforehand.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor
from transformers import LlamaForCausalLM

from ..generate import Rollouts
from ..models import load_model
from ..rollouts import PROMPT_TOKENS, rollout_batches

EARLY = (2, 5)  # layers whose inputs EAGLE-3 reads beside the last one's output
TEMPERATURE = 0.7  # of the teacher, as for the draft
LATER_STEPS = 0.8  # weight of a step, relative to the one before
ROWS_AT_ONCE = 16


class Lesson(NamedTuple):
    """Rows of text and what the target made of them.

    tokens [rows, length]; top_ids and top_logits [rows, length, TOP] as in `Rollouts`; early
    [rows, length, 2 hidden] the inputs of the EARLY layers, last [rows, length, hidden] the normed
    output of the last one, both bf16.
    """

    tokens: Tensor
    top_ids: Tensor
    top_logits: Tensor
    early: Tensor
    last: Tensor


@torch.no_grad()
def write_lessons(target: Path, rollouts: Rollouts, out: Path) -> None:
    """Has the target read the rollouts, and writes everything to the file `out`."""
    model = load_model(target)
    early, last = list[Tensor](), list[Tensor]()
    for tokens in track(rollouts.tokens.split(ROWS_AT_ONCE), "reading"):
        read = model.model(tokens, output_hidden_states=True, use_cache=False)
        states = [state.bfloat16() for state in read.hidden_states]
        early.append(torch.cat([states[layer] for layer in EARLY], -1))
        last.append(states[-1])
    torch.save([*rollouts, torch.cat(early), torch.cat(last)], out)


def lesson_batches(lessons: Path, rows: int, seed: int) -> Iterator[Lesson]:
    """Batches of `rows` rows without end, hidden states in fp32."""
    stored = Lesson(*torch.load(lessons, mmap=True))
    indices = Rollouts(torch.arange(len(stored.tokens)), stored.top_ids, stored.top_logits)
    for chosen in rollout_batches(indices, rows, torch.Generator().manual_seed(seed)):
        tokens, early, last = (f[chosen.tokens] for f in (stored.tokens, stored.early, stored.last))
        yield Lesson(tokens, chosen.top_ids, chosen.top_logits, early.float(), last.float())


def first_taught(step: int) -> int:
    """The first index whose guess at a step is of the target's own text, not of the prompt."""
    return PROMPT_TOKENS - 2 - step


def last_taught(lesson: Lesson, step: int) -> int:
    """Behind the last index whose guess at a step lies in the text."""
    return lesson.tokens.shape[1] - 2 - step


def teacher_loss(
    logits: Tensor, lesson: Lesson, step: int, own_ids: Tensor | None = None
) -> Tensor:
    """Cross-entropy (nats a token) to the target's sharpened likeliest tokens.

    logits [rows, n, V] are those of the indices from first_taught(step) on; index i guesses what
    follows position i + step + 1. own_ids [vocabulary]: the guesser's id of each of the target's
    tokens, -1 for one that it does not know and is not taught.
    """
    start = first_taught(step) + step + 1
    where = slice(start, start + logits.shape[1])
    chosen = lesson.top_ids[:, where].long()
    teacher = F.softmax(lesson.top_logits[:, where].float() / TEMPERATURE, -1)
    if own_ids is not None:
        chosen = own_ids[chosen]
        teacher = teacher * (chosen >= 0)
        chosen = chosen.clamp_min(0)
    covered = teacher.sum(-1) * logits.logsumexp(-1)
    return (covered - (teacher * logits.gather(-1, chosen)).sum(-1)).mean()


def weighted(losses: list[Tensor]) -> Tensor:
    """The steps' mean loss, nearer steps counting for more."""
    weights = [LATER_STEPS**step for step in range(len(losses))]
    total = torch.stack([w * loss for w, loss in zip(weights, losses, strict=True)]).sum()
    return total / sum(weights)


def embedding(target: LlamaForCausalLM) -> Tensor:
    """The target's token embedding [vocabulary, hidden], which is its head too."""
    weight: Tensor = target.get_input_embeddings().weight.detach()
    return weight
