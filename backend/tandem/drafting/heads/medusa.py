"""Medusa (Cai et al. 2024, arXiv 2401.10774): heads that guess the next tokens side by side, all
from the target's last hidden state, none knowing the others' guesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tandem.drafting.heads.checkpoint import Head, Place, fill
from tandem.drafting.heads.last_hidden import LastHidden
from tandem.drafting.steps import Level, depth
from tandem.errors import CheckpointError
from tandem.models.config import ModelConfig
from tandem.models.layers import Linear
from tandem.scheduler import Decode


class MedusaHead(nn.Module):
    """Residual blocks and a head over the vocabulary."""

    def __init__(self, layers: int, model: ModelConfig, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        size = model.hidden_size
        self.layers = nn.ModuleList(Linear(size, size, bias, dtype) for _ in range(layers))
        self.head = Linear(size, model.vocab_size, False, dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, hidden] to float32 [B, V]."""
        for layer in self.layers:
            hidden = hidden + F.silu(layer(hidden))
        logits: Tensor = self.head(hidden)
        return logits.float()


class Medusa(LastHidden):
    """A guesser; both published layouts (`{head}.{layer}.linear.*` and `blocks.*, lm_heads.*`)."""

    def __init__(self, head: Head, model: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        names = {_new_name(name): name for name in head.tensors}
        count = 1 + max(
            (int(n.split(".")[1]) for n in names if n.startswith("lm_heads.")), default=-1
        )
        if count == 0:
            raise CheckpointError(f"{head.folder} lacks the tensor 0.1.weight: it has no heads.")
        layers = 1 + max(
            (int(n.split(".")[3]) for n in names if n.startswith("blocks.0.")), default=-1
        )
        bias = "blocks.0.layers.0.bias" in names
        self.max_depth = count
        self.heads = nn.ModuleList(MedusaHead(layers, model, bias, dtype) for _ in range(count))
        fill(self, head, self._places(names, layers, bias))
        self._rows: dict[str, int] = {}
        self._logits: list[Tensor] = []

    def _places(self, names: Mapping[str, str], layers: int, bias: bool) -> dict[str, Place]:
        """names: of the checkpoint's tensors, by what they are called in the newer layout."""
        places: dict[str, Place] = {}
        for index in range(self.max_depth):
            for layer in range(layers):
                for kind in ("weight", "bias") if bias else ("weight",):
                    theirs = f"blocks.{index}.layers.{layer}.{kind}"
                    place = Place(f"heads.{index}.layers.{layer}.{kind}")
                    places[names.get(theirs, f"{index}.{layer}.linear.{kind}")] = place
            theirs = f"lm_heads.{index}.weight"
            places[names.get(theirs, theirs)] = Place(f"heads.{index}.head.weight")
        return places

    @torch.inference_mode()
    def begin(self, decodes: Sequence[Decode]) -> Tensor:
        hidden = self.hidden(decodes)
        deepest = max(decode.lookahead for decode in decodes)
        self._logits = [head(hidden) for head in self.heads[:deepest]]
        self._rows = {decode.request.id: row for row, decode in enumerate(decodes)}
        return self._logits[0]

    def extend(self, levels: Sequence[Level]) -> Tensor:
        """The next head's guesses, whatever the nodes are."""
        rows = [self._rows[level.request.id] for level in levels for _ in range(level.new)]
        return self._logits[depth(levels[0])][rows]


def _new_name(name: str) -> str:
    """A tensor's name in the layout with blocks and lm_heads."""
    parts = name.removeprefix("medusa_heads.").split(".")
    if not (len(parts) > 2 and parts[0].isdigit() and parts[1].isdigit()):
        return name
    head, layer = parts[:2]
    if parts[2] == "linear":
        return f"blocks.{head}.layers.{layer}.{parts[3]}"
    return f"lm_heads.{head}.{parts[2]}"
