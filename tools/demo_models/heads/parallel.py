"""Medusa and MLP speculator: no attention, the target's last hidden state is all they see."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig

from .lessons import Lesson, first_taught, last_taught, teacher_loss

PLACES = 4  # tokens they can draft
MLP_INNER = 256


class MedusaHead(nn.Module):
    """A residual block, the identity at first, and a head that begins as the target's."""

    def __init__(self, config: LlamaConfig, table: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(config.hidden_size, config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.head.weight.data.copy_(table)

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.head(hidden + F.silu(self.linear(hidden)))
        return found


class Medusa(nn.Module):
    """A head for each place."""

    def __init__(self, config: LlamaConfig, table: Tensor) -> None:
        super().__init__()
        self.heads = nn.ModuleList(MedusaHead(config, table) for _ in range(PLACES))

    def losses(self, lesson: Lesson, steps: int) -> list[Tensor]:
        found: list[Tensor] = []
        for step, head in enumerate(self.heads[:steps]):
            taught = lesson.last[:, first_taught(step) : last_taught(lesson, step)]
            found.append(teacher_loss(head(taught), lesson, step))
        return found

    def config(self) -> dict[str, Any]:
        """Its own entries of config.json."""
        return {"model_type": "medusa", "medusa_num_heads": PLACES, "medusa_num_layers": 1}

    def tensors(self) -> dict[str, Tensor]:
        """The published layout."""
        found: dict[str, Tensor] = {}
        for index, head in enumerate(self.heads):
            for name, tensor in head.state_dict().items():
                place = "1.weight" if name.startswith("head") else f"0.{name}"
                found[f"{index}.{place}"] = tensor
        return found


class MlpSpeculator(nn.Module):
    """Stages with tied weights, but for the first projection."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size, vocab = config.hidden_size, config.vocab_size
        self.emb = nn.Embedding(vocab, MLP_INNER)
        self.first = nn.Linear(size, MLP_INNER, bias=False)
        self.proj = nn.Linear(MLP_INNER, MLP_INNER, bias=False)
        self.scale = nn.Parameter(torch.ones(MLP_INNER))
        self.shift = nn.Parameter(torch.zeros(MLP_INNER))
        self.head = nn.Linear(MLP_INNER, vocab, bias=False)
        state_weight = 0.5 ** (0.5 / PLACES)
        self.ratio = math.sqrt((1 - state_weight**2) * MLP_INNER / 2) / state_weight
        nn.init.normal_(self.emb.weight, std=1 / math.sqrt(MLP_INNER))

    def losses(self, lesson: Lesson, steps: int) -> list[Tensor]:
        first = first_taught(steps - 1)
        state = (_rms(lesson.last) / math.sqrt(2))[:, first:]
        found: list[Tensor] = []
        for step in range(steps):
            length = last_taught(lesson, step) - first
            tokens = lesson.tokens[:, first + step + 1 : first + step + 1 + length]
            projected = (self.proj if step else self.first)(state[:, :length])
            mixed = _rms(projected + self.ratio * self.emb(tokens))
            state = F.gelu(mixed * self.scale + self.shift)
            logits = self.head(state[:, first_taught(step) - first :])
            found.append(teacher_loss(logits, lesson, step))
        return found

    def config(self) -> dict[str, Any]:
        """Its own entries of config.json."""
        return {
            "architectures": ["MLPSpeculatorPreTrainedModel"],
            "model_type": "mlp_speculator",
            "emb_dim": self.first.in_features,
            "inner_dim": MLP_INNER,
            "n_predict": PLACES,
            "top_k_tokens_per_head": [1] * PLACES,
            "tie_weights": True,
            "scale_input": True,
        }

    def tensors(self) -> dict[str, Tensor]:
        """The published layout: of tied stages the first, and the second's projection."""
        return {
            "speculator.emb.0.weight": self.emb.weight,
            "speculator.proj.0.weight": self.first.weight,
            "speculator.proj.1.weight": self.proj.weight,
            "speculator.ln.0.weight": self.scale,
            "speculator.ln.0.bias": self.shift,
            "speculator.head.0.weight": self.head.weight,
        }


def _rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
