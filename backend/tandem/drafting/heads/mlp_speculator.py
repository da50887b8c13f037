"""MLP speculator (Wertheimer et al. 2024, arXiv 2404.19124): a small recurrent network over the
target's last hidden state and the tokens drafted so far, a stage a token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tandem.drafting.heads.checkpoint import Head, Place, fill_all, value
from tandem.drafting.heads.last_hidden import LastHidden
from tandem.drafting.steps import Level, depth
from tandem.models.config import ModelConfig
from tandem.models.layers import Embedding, Linear
from tandem.scheduler import Decode

EPS = 1e-6


def rms(x: Tensor) -> Tensor:
    """The paper's norm without scale and shift."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


class _Norm(nn.Module):
    """Scale and shift behind the norm."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return rms(x) * self.weight + self.bias


class MlpSpeculator(LastHidden):
    """A guesser; `speculator.{emb,proj,head,ln}.{stage}.*`."""

    def __init__(self, head: Head, model: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        stages = int(value(head, "n_predict"))
        inner = int(head.config.get("inner_dim") or model.hidden_size)
        self.max_depth = stages
        self.scale_input = bool(head.config.get("scale_input", False))
        self.emb = nn.ModuleList(Embedding(model.vocab_size, inner, dtype) for _ in range(stages))
        widths = [model.hidden_size, *[inner] * (stages - 1)]
        self.proj = nn.ModuleList(Linear(width, inner, False, dtype) for width in widths)
        self.ln = nn.ModuleList(_Norm(inner, dtype) for _ in range(stages))
        self.head = nn.ModuleList(
            Linear(inner, model.vocab_size, False, dtype) for _ in range(stages)
        )
        state_weight = 0.5 ** (0.5 / stages)
        self.ratio = math.sqrt((1 - state_weight**2) * inner / 2) / state_weight
        fill_all(self, head, self._places(head, stages))
        self._last: Tensor

    @staticmethod
    def _places(head: Head, stages: int) -> list[tuple[str, Place]]:
        """With tied weights a checkpoint may hold the first stage's tensors alone (the second's of
        the projection, whose first has another width)."""
        tied = bool(head.config.get("tie_weights", False))
        kinds = [("emb", ("weight",)), ("proj", ("weight",)), ("head", ("weight",))]
        found: list[tuple[str, Place]] = []
        for kind, parts in [*kinds, ("ln", ("weight", "bias"))]:
            for stage in range(stages):
                for part in parts:
                    own = f"speculator.{kind}.{stage}.{part}"
                    first = min(stage, 1) if kind == "proj" else 0
                    name = f"speculator.{kind}.{first}.{part}" if tied else own
                    found.append((own if own in head.tensors else name, Place(own[11:])))
        return found

    @torch.inference_mode()
    def begin(self, decodes: Sequence[Decode]) -> Tensor:
        hidden = self.hidden(decodes)
        if self.scale_input:
            hidden = rms(hidden) / math.sqrt(2)
        tokens = [decode.request.tokens[-1] for decode in decodes]
        return self._stage(0, hidden, tokens)

    @torch.inference_mode()
    def extend(self, levels: Sequence[Level]) -> Tensor:
        tokens = [token for level in levels for token in level.tokens[-level.new :]]
        origins = [row for level in levels for row in level.origins]
        return self._stage(depth(levels[0]), self._last[origins], tokens)

    def _stage(self, stage: int, state: Tensor, tokens: Sequence[int]) -> Tensor:
        """state [B, width] and the tokens behind it to logits [B, V]; keeps the next state."""
        embedded = self.emb[stage](torch.tensor(tokens, device=state.device))
        self._last = F.gelu(self.ln[stage](self.proj[stage](state) + self.ratio * embedded))
        logits: Tensor = self.head[stage](self._last)
        return logits.float()
