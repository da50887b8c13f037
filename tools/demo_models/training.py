"""One training loop for every stage: planned by time, annealed to zero, bf16 where it is safe."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from .tokenizer import VOCABULARY_SIZE


class Plan(NamedTuple):
    """How a stage trains. Its budget is time: the machine's speed is not known beforehand."""

    budget_s: float
    muon_rate: float = 5e-3  # root mean square of a matrix's update is a fifth of it
    adamw_rate: float = 3e-3  # of what Muon does not take
    adamw_alone_rate: float = 1e-3  # where Muon is not used
    warmup: float = 0.02  # share of the budget
    checkpoint_s: float = 240.0


class State(NamedTuple):
    """Where a stage stands: steps so far, seconds since its start, recent mean loss (nats)."""

    steps: int
    seconds: float
    loss: float


START = State(0, 0.0, 0.0)
# Processors without bf16 arithmetic emulate it, many times slower than fp32.
HAS_BF16: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()


def learning_rate_scale(fraction: float, warmup: float) -> float:
    """Linear warm-up, then linear decay that reaches zero with the budget (`fraction` in 0..1)."""
    rise = (fraction + 1e-3) / warmup  # the very first step already learns something
    return max(min(rise, 1.0 - fraction), 0.0)


def train(
    model: nn.Module,
    loss_at: Callable[[float], Tensor],
    plan: Plan,
    on_checkpoint: Callable[[State], None],
    since: State = START,
    until: float = 1.0,
) -> State:
    """Trains from where `since` stands until the share `until` of the plan's budget is spent.

    loss_at(fraction of the budget spent) draws a batch and gives the model's loss on it (a scalar).
    """
    model.train()
    optimizers = _optimizers(model, plan)
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    state, checkpointed = since, since.seconds
    start = time.monotonic() - since.seconds
    with _progress_bar() as bar:
        task = bar.add_task("train", total=int(plan.budget_s), loss=0.0)
        while state.seconds < until * plan.budget_s:
            fraction = state.seconds / plan.budget_s
            scale = learning_rate_scale(fraction, plan.warmup)
            for optimizer, peak in zip(optimizers, peaks, strict=True):
                optimizer.param_groups[0]["lr"] = peak * scale
            loss = _step(model, optimizers, loss_at, fraction)
            mean = 0.95 * state.loss + 0.05 * loss if state.steps else loss
            state = State(state.steps + 1, time.monotonic() - start, mean)
            bar.update(task, completed=int(state.seconds), loss=mean)
            if state.seconds - checkpointed > plan.checkpoint_s:
                on_checkpoint(state)
                model.train()
                checkpointed = time.monotonic() - start
    on_checkpoint(state)
    return state


def next_token_loss(model: LlamaForCausalLM, rows: Tensor) -> Tensor:
    """Mean cross-entropy (nats a token) of the next token over rows [rows, length]."""
    logits = model(input_ids=rows, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())


def _step(
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    loss_at: Callable[[float], Tensor],
    fraction: float,
) -> float:
    with torch.autocast("cpu", torch.bfloat16, enabled=HAS_BF16):
        loss = loss_at(fraction)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def _optimizers(model: nn.Module, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for matrices, AdamW for what has a row a token and for the norms' gains.

    Steps are dear on two cores, and Muon gets more out of each: README.md has the comparison.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if not HAS_BF16:  # Muon computes in bf16: seven times the time of all the rest of a step
        return [torch.optim.AdamW(trained, lr=plan.adamw_alone_rate, betas=(0.9, 0.95), fused=True)]
    matrices = [p for p in trained if p.dim() == 2 and VOCABULARY_SIZE not in p.shape]
    taken = {id(p) for p in matrices}
    others = [p for p in trained if id(p) not in taken]
    muon = torch.optim.Muon(
        matrices, lr=plan.muon_rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(
        others, lr=plan.adamw_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    return [muon, adamw]


def _progress_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("s  loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
