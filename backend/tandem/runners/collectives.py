"""Joins a rank's part of a decoder to the other ranks' parts.

A transform of a built decoder: it wraps the modules whose outputs are partial. One all-reduce for
the embedding, two a layer, and one gather of the logits to the first rank.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tandem.models.decoder import Decoder, Layer
from tandem.models.layers import Embedding
from tandem.models.shard import Shard
from tandem.runners.groups import Group


def collectives_a_forward(num_layers: int, size: int) -> int:
    """Collective calls of a forward pass that asks for logits."""
    return 0 if size == 1 else 2 * num_layers + 2


def join(model: Decoder, shard: Shard, group: Group, vocab_size: int) -> None:
    """Makes the decoder's outputs those of the whole model; the first rank gets the logits."""
    if shard.size == 1:
        return
    model.embed = VocabularyPart(model.embed, shard, group)  # type: ignore[assignment]
    model.head = GatheredHead(model.head, group, vocab_size)  # type: ignore[assignment]
    for layer in model.layers:
        assert isinstance(layer, Layer)
        layer.attention.out = Summed(layer.attention.out, group)  # type: ignore[assignment]
        layer.mlp.down = Summed(layer.mlp.down, group)  # type: ignore[assignment]


class Summed(nn.Module):
    """A layer that has a part of the input features: the ranks' outputs add up."""

    def __init__(self, inner: nn.Module, group: Group) -> None:
        super().__init__()
        self.inner = inner
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        self.group.all_reduce(y)
        return y


class VocabularyPart(nn.Module):
    """An embedding that has the rows of some tokens: the others' are another rank's."""

    def __init__(self, inner: Embedding, shard: Shard, group: Group) -> None:
        super().__init__()
        self.inner = inner
        self.group = group
        self.rows = inner.weight.shape[0]
        self.first = shard.rank * self.rows

    def forward(self, tokens: Tensor) -> Tensor:
        own = tokens - self.first
        foreign = (own < 0) | (own >= self.rows)
        x: Tensor = self.inner(own.masked_fill(foreign, 0))
        x.masked_fill_(foreign[:, None], 0)
        self.group.all_reduce(x)
        return x


class GatheredHead(nn.Module):
    """A head that has the logits of some tokens: the first rank puts them together."""

    def __init__(self, inner: nn.Module, group: Group, vocab_size: int) -> None:
        super().__init__()
        self.inner = inner
        self.group = group
        self.vocab_size = vocab_size

    def forward(self, hidden: Tensor) -> Tensor:
        """[R, hidden] to [R, vocab] on the first rank, to its own part elsewhere."""
        part: Tensor = self.inner(hidden).contiguous()
        parts = self.group.gather(part)
        if parts is None:
            return part
        # contiguous, for a draft on ranks of its own passes it on
        return torch.cat(parts, -1)[:, : self.vocab_size].contiguous()
