"""The one layer of EAGLE-3 and MTP, so that it can be unrolled: attention sees the target's hidden
states up to where a draft began, and the draft's own ones behind that (arXiv 2503.01840)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig

INNER = 704  # of the layer's MLP: half the target's

KeyValues = list[tuple[Tensor, Tensor]]


class Attention(nn.Module):
    """Causal attention that can be unrolled; names are Llama's."""

    def __init__(self, config: LlamaConfig, width: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size = config.head_dim
        hidden = config.hidden_size
        self.q_proj = nn.Linear(width, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(width, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(width, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, hidden, bias=False)
        self.theta = config.rope_parameters["rope_theta"]

    @torch.no_grad()
    def look_at_oneself(self) -> None:
        """A beginning in which every place attends to itself most: where attention alone reads the
        embedding, as in EAGLE-3, the newest token is then seen from the first step on."""
        keys = self.k_proj.weight.unflatten(0, (self.kv_heads, self.size))
        shared = keys.repeat_interleave(self.heads // self.kv_heads, 0)
        self.q_proj.weight.copy_(shared.flatten(0, 1))

    def forward(self, x: Tensor, earlier: KeyValues, start: int) -> Tensor:
        """Outputs for the indices from `start` on, at step len(earlier); keeps keys and values.

        x [rows, n, width] begins at index 0 in the first step, at `start` in later ones.
        """
        step = len(earlier)
        begin = start if step else 0
        query = self._rotated(
            self._split(self.q_proj(x[:, start - begin :]), self.heads), start + step
        )
        shared = self.heads // self.kv_heads
        key = self._rotated(self._split(self.k_proj(x), self.kv_heads), begin + step)
        value = self._split(self.v_proj(x), self.kv_heads)
        earlier.append((key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)))
        out = self._attend(query / math.sqrt(self.size), earlier, start)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    @staticmethod
    def _attend(query: Tensor, earlier: KeyValues, start: int) -> Tensor:
        """Over the first step's keys up to the own index; of each later step the own key."""
        length = query.shape[2]
        key, value = (part[:, :, : start + length] for part in earlier[0])
        later = [[part[:, :, :length] for part in step] for step in earlier[1:]]
        ahead = torch.ones(length, start + length, dtype=torch.bool).triu(start + 1)
        shared = (query @ key.transpose(2, 3)).masked_fill(ahead, -torch.inf)
        own = [(query * key).sum(-1, keepdim=True) for key, _ in later]
        shares = torch.cat([shared, *own], -1).softmax(-1)
        out = shares[..., : start + length] @ value
        for index, (_, own_value) in enumerate(later):
            out = out + shares[..., start + length + index, None] * own_value
        return out

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(2, (heads, self.size)).transpose(1, 2)

    def _rotated(self, x: Tensor, offset: int) -> Tensor:
        rates = self.theta ** -(torch.arange(0, self.size, 2) / self.size)
        angles = torch.outer(torch.arange(x.shape[2]) + offset, rates).repeat(1, 2)
        low, high = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-high, low], -1) * angles.sin()


class Mlp(nn.Module):
    """Gated, as Llama's."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, INNER
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def norm(config: LlamaConfig) -> nn.RMSNorm:
    return nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


class Layer(nn.Module):
    """What both layers have, under Llama's names."""

    def __init__(self, config: LlamaConfig, width: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, width)
        self.mlp = Mlp(config)
        self.input_layernorm = norm(config)
        self.post_attention_layernorm = norm(config)

    def finish(self, residual: Tensor, x: Tensor, earlier: KeyValues, start: int) -> Tensor:
        """Attention over x and the MLP, on top of the residual, from index `start` on."""
        begin = 0 if earlier else start
        x = residual[:, begin:] + self.self_attn(x, earlier, start)
        return x + self.mlp(self.post_attention_layernorm(x))


class MidLayer(Layer):
    """EAGLE-3's: attention reads the normed embedding and the normed hidden state."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config, 2 * config.hidden_size)
        self.hidden_norm = norm(config)


class MtpLayer(Layer):
    """MiMo's."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config, config.hidden_size)
        self.token_layernorm = norm(config)
        self.hidden_layernorm = norm(config)
        self.final_layernorm = norm(config)
