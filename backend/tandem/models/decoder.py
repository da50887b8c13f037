"""One decoder for the dense families: Llama, Mistral, Qwen2 (MiMo too), Qwen3.

Works on a flat batch: T rows, one a token, of any mix of requests. Which rows see which keys is
the business of the `Attention` it is handed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tandem.models.config import ModelConfig
from tandem.models.layers import Embedding, Linear, RMSNorm, RotaryTable, rotate_

Made: TypeAlias = tuple[Tensor, Tensor | None]
"""Hidden states [T, hidden] after the last norm, and what was tapped [T, width]."""


class Passed(NamedTuple):
    """What a pass over T tokens gives of the R rows that were asked for."""

    logits: Tensor
    """[R, vocab] float32, until the model's next pass: to be kept they must be copied."""
    features: Tensor | None
    """[T, width]; None: nothing was tapped."""
    best: list[int] | None = None
    """[R] the first of each row's largest logits, where the pass looks for it."""


class Attention(Protocol):
    """What a layer asks of the attention over one batch."""

    def __call__(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        """Stores key_value [T, kv_width] and attends.

        query [T, heads, head_dim] gives [T, heads * head_dim].
        """
        ...


class SelfAttention(nn.Module):
    """Attention block with q, k and v in one matrix."""

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, input_width: int | None = None
    ) -> None:
        """input_width: of what q, k and v are made from; None: the hidden size."""
        super().__init__()
        self.num_heads = config.num_heads
        self.num_rotated = config.num_heads + config.num_kv_heads
        self.head_dim = config.head_dim
        self.query_width = config.num_heads * config.head_dim
        width = self.query_width + config.kv_width
        self.qkv = Linear(input_width or config.hidden_size, width, config.qkv_bias, dtype)
        self.out = Linear(self.query_width, config.hidden_size, config.out_bias, dtype)
        if config.qk_norm:
            self.q_norm: RMSNorm | None = RMSNorm(config.head_dim, config.norm_eps, dtype)
            self.k_norm: RMSNorm | None = RMSNorm(config.head_dim, config.norm_eps, dtype)
        else:
            self.q_norm = self.k_norm = None

    def forward(
        self, layer: int, x: Tensor, rope: tuple[Tensor, Tensor], attention: Attention
    ) -> Tensor:
        qkv = self.qkv(x)
        heads = qkv.view(x.shape[0], -1, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            heads[:, : self.num_heads] = self.q_norm(heads[:, : self.num_heads])
            keys = heads[:, self.num_heads : self.num_rotated]
            keys.copy_(self.k_norm(keys))
        rotated = heads[:, : self.num_rotated]
        rotate_(rotated, rope)
        return self.out(attention(layer, heads[:, : self.num_heads], qkv[:, self.query_width :]))


class MLP(nn.Module):
    """SiLU-gated feed-forward block, gate and up in one matrix."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.width = config.intermediate_size
        self.gate_up = Linear(config.hidden_size, 2 * self.width, config.mlp_bias, dtype, True)
        self.down = Linear(self.width, config.hidden_size, config.mlp_bias, dtype)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).split(self.width, -1)
        return self.down(F.silu(gate) * up)


class Layer(nn.Module):
    """Pre-norm residual layer."""

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, input_width: int | None = None
    ) -> None:
        """input_width: as of `SelfAttention`."""
        super().__init__()
        self.input_norm: nn.Module = RMSNorm(config.hidden_size, config.norm_eps, dtype)
        self.attention = SelfAttention(config, dtype, input_width)
        self.post_norm = RMSNorm(config.hidden_size, config.norm_eps, dtype)
        self.mlp = MLP(config, dtype)

    def forward(
        self,
        layer: int,
        x: Tensor,
        normed: Tensor,
        rope: tuple[Tensor, Tensor],
        attention: Attention,
    ) -> Tensor:
        """x [T, hidden], and what attention reads of it."""
        x = x + self.attention(layer, normed, rope, attention)
        return x + self.mlp(self.post_norm(x))


class Stack(nn.Module):
    """Embedding, layers, final norm and head: of a model or a draft head."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        embed: Embedding,
        head: Linear,
        input_width: int | None = None,
    ) -> None:
        """input_width: of what the first layer's q, k and v are made from."""
        super().__init__()
        self.config = config
        self.embed = embed
        widths = [input_width, *[None] * (config.num_layers - 1)]
        self.layers = nn.ModuleList(Layer(config, dtype, width) for width in widths)
        self.norm: nn.Module = RMSNorm(config.hidden_size, config.norm_eps, dtype)
        self.head = head
        self.rope = RotaryTable(config, dtype)

    @property
    def input_norm(self) -> nn.Module:
        """The first layer's."""
        first = self.layers[0]
        assert isinstance(first, Layer)
        return first.input_norm

    def run(
        self,
        x: Tensor,
        normed: Tensor,
        positions: Tensor,
        attention: Attention,
        tap: Callable[[int, Tensor], None] | None = None,
        first: int = 0,
    ) -> Tensor:
        """x [T, hidden], what the first layer's attention reads of it, and positions [T] to what
        the last layer gives, [T, hidden], before the norm.

        tap is shown the input of every layer; what the last one gives is that of one more. first:
        the layer of the KV cache where these begin.
        """
        rope = self.rope(positions)
        for index, layer in enumerate(self.layers):
            if tap is not None:
                tap(index, x)
            assert isinstance(layer, Layer)
            if index:
                normed = layer.input_norm(x)
            x = layer(first + index, x, normed, rope, attention)
        if tap is not None:
            tap(len(self.layers), x)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden], normed, to float32 [R, vocab]."""
        if hidden.shape[0] == 0:
            return hidden.new_empty((0, self.config.vocab_size), dtype=torch.float32)
        return self.head(hidden).float()


class Decoder(Stack):
    """A whole model."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        embed = Embedding(config.vocab_size, config.hidden_size, dtype)
        head = Linear(config.hidden_size, config.vocab_size, False, dtype)
        super().__init__(config, dtype, embed, head)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: Attention,
        tap: Callable[[int, Tensor], None] | None = None,
    ) -> Tensor:
        """tokens, positions [T] to final hidden states [T, hidden], after the last norm."""
        x = self.embed(tokens)
        made: Tensor = self.norm(self.run(x, self.input_norm(x), positions, attention, tap))
        return made
