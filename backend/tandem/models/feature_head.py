"""The mathematics of a head that reads the target's hidden states: EAGLE and MTP.

Each token's embedding is joined to a hidden state; what follows is a stack of decoder layers like
any other. The published formats differ in how the two are joined.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tandem.models.config import ModelConfig
from tandem.models.decoder import Layer, Stack
from tandem.models.layers import Embedding, Linear, RMSNorm


class Fusion(nn.Module):
    """One vector of the hidden states of several depths, side by side."""

    def __init__(self, columns: int, size: int, parts: int, eps: float, dtype: torch.dtype) -> None:
        """parts: how many parts of the columns are normed, each for itself."""
        super().__init__()
        self.norms = nn.ModuleList(RMSNorm(columns // parts, eps, dtype) for _ in range(parts))
        self.fc = Linear(columns, size, False, dtype)

    def forward(self, features: Tensor) -> Tensor:
        if self.norms:
            parts = features.chunk(len(self.norms), -1)
            normed = [norm(part) for norm, part in zip(self.norms, parts, strict=True)]
            features = torch.cat(normed, -1)
        fused: Tensor = self.fc(features)
        return fused


class FeatureHead(Stack):
    """The embedding of a token and a hidden state, each with its norm, side by side are what the
    first layer's attention reads; or, projected, the first layer's input."""

    taps: tuple[int, ...] = ()
    """As in `Proposer`."""
    hidden_first = False
    """The hidden state stands before the embedding."""
    blind_start = False
    """A text's first row sees no token."""
    normed_residual = False
    """Without a projection, the first layer's input is the normed hidden state."""
    norm_output = True
    """What stands for the hidden state in the next step has passed the last norm."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        embed: Embedding,
        head: Linear,
        project: Linear | None = None,
    ) -> None:
        """project: [2 * hidden] to [hidden]."""
        width = 2 * config.hidden_size if project is None else None
        super().__init__(config, dtype, embed, head, width)
        self.project = project
        self.fusion: Fusion | None = None
        self.token_norm: nn.Module = nn.Identity()
        self.hidden_norm: nn.Module = nn.Identity()
        self.token_ids: Tensor | None
        """[own vocabulary] the target's id of each of its tokens; None: they are the same."""
        self.register_buffer("token_ids", None)
        if project is None:
            self.drop_input_norm()

    def drop_input_norm(self) -> None:
        """What the first layer's attention reads has no norm of its own."""
        first = self.layers[0]
        assert isinstance(first, Layer)
        first.input_norm = nn.Identity()

    def fuse(self, features: Tensor) -> Tensor:
        """The target's hidden states [T, width] as the head takes them [T, hidden]."""
        return features if self.fusion is None else self.fusion(features)

    def enter(self, tokens: Tensor, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """tokens, positions [T] and hidden [T, hidden] to the first layer's input [T, hidden] and
        what its attention reads of it."""
        embedded = self.embed(tokens).to(hidden.dtype)
        if self.blind_start:
            embedded = embedded.masked_fill((positions == 0)[:, None], 0)
        embedded, normed = self.token_norm(embedded), self.hidden_norm(hidden)
        pair = torch.cat([normed, embedded] if self.hidden_first else [embedded, normed], -1)
        if self.project is None:
            return normed if self.normed_residual else hidden, pair
        x = self.project(pair)
        return x, self.input_norm(x)

    def spread(self, logits: Tensor) -> Tensor:
        """Logits [R, own vocabulary] over the target's [R, V]."""
        return logits
