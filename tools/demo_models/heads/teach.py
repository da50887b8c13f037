"""Trains one head and writes its folder."""

import json
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from ..models import load_model
from ..training import Plan, State, train
from .lessons import embedding, lesson_batches, weighted
from .parallel import PLACES, Medusa, MlpSpeculator
from .recurrent import Eagle3, Mtp

ROWS_A_STEP = 8
METHODS = ("eagle3", "mtp", "medusa", "mlp_speculator")

console = Console()


class Taught(Protocol):
    """What every head offers."""

    def losses(self, lesson: Any, steps: int) -> list[Tensor]: ...

    def config(self) -> dict[str, Any]: ...

    def tensors(self) -> dict[str, Tensor]: ...


def teach(
    method: str,
    target: Path,
    lessons: Path,
    out: Path,
    budget_s: float,
    seed: int,
    start: Path | None,
) -> None:
    """Trains the method's head, or the one in `start` further, on a file of lessons, and writes it
    to the folder `out`."""
    torch.manual_seed(seed)
    teacher = load_model(target)
    texts = torch.load(lessons, mmap=True)[0]
    head = _new_head(method, teacher, texts)
    if start is not None:
        _restore(head, start)
    batches = lesson_batches(lessons, ROWS_A_STEP, seed)
    last: list[float] = []

    def loss_at(fraction: float) -> Tensor:
        losses = head.losses(next(batches), PLACES if start else _steps(fraction))
        last[:] = [round(loss.item(), 2) for loss in losses]
        return weighted(losses)

    def checkpoint(state: State) -> None:
        console.print(f"{state.seconds:.0f} s, {state.steps} steps, {state.loss:.3f}, last {last}")
        save_head(head, teacher.config, out)

    rate = 2e-3 if start is None else 1e-3
    plan = Plan(budget_s, adamw_alone_rate=rate, checkpoint_s=budget_s / 10)
    train(head, loss_at, plan, checkpoint)


def _steps(fraction: float) -> int:
    """How many tokens ahead are taught: the near ones first, since each costs as much."""
    return min(PLACES, 1 + int(fraction * 2 * PLACES))


def _new_head(method: str, teacher: LlamaForCausalLM, texts: Tensor) -> Any:
    config, table = teacher.config, embedding(teacher)
    if method == "eagle3":
        return Eagle3(config, table, texts, teacher.model.norm.weight.detach())
    if method == "mtp":
        return Mtp(config, table)
    return Medusa(config, table) if method == "medusa" else MlpSpeculator(config)


@torch.no_grad()
def _restore(head: Taught, folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    for name, tensor in head.tensors().items():
        tensor.copy_(stored[name])


def save_head(head: Taught, config: LlamaConfig, out: Path) -> None:
    """config.json and model.safetensors, floats in bf16."""
    shape = {
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "vocab_size": config.vocab_size,
    }
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(shape | head.config(), indent=2) + "\n"
    (out / "config.json").write_text(text, encoding="utf-8")
    kept = {name: _stored(t) for name, t in head.tensors().items()}
    save_file(kept, out / "model.safetensors")
    (out / "model.safetensors").chmod(0o644)


def _stored(tensor: Tensor) -> Tensor:
    found = tensor.detach()
    return (found.bfloat16() if found.is_floating_point() else found).contiguous()
