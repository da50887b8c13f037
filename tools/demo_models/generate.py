"""Batched generation by the target, with its likeliest tokens at every place.

transformers' `generate` copies the whole cache at every token; with 128 rows that costs more than
the model. Here the cache is allocated once.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from .training import HAS_BF16

DTYPE = torch.bfloat16 if HAS_BF16 else torch.float32
TOP = 16  # likeliest tokens kept a position: they hold nearly all of the target's probability


class Rollouts(NamedTuple):
    """Prompts continued by the target, and what it thought at each position.

    tokens [rows, length]; top_ids and top_logits [rows, length, TOP], sorted, position i's being
    those of the token at i + 1.
    """

    tokens: Tensor
    top_ids: Tensor
    top_logits: Tensor


class BatchDecoder:
    """A Llama over rows of equal length, in DTYPE, with one preallocated cache."""

    def __init__(self, model: LlamaForCausalLM, rows: int, capacity: int) -> None:
        config = model.config
        self.weights = {name: p.detach().to(DTYPE) for name, p in model.named_parameters()}
        self.layers, self.head_dim = config.num_hidden_layers, config.head_dim
        self.epsilon, self.length = config.rms_norm_eps, 0
        shape = (self.layers, 2, rows, config.num_key_value_heads, capacity, self.head_dim)
        self.cache = torch.zeros(shape, dtype=DTYPE)
        theta = config.rope_parameters["rope_theta"]
        rates = theta ** -(torch.arange(0, self.head_dim, 2) / self.head_dim)
        angles = torch.outer(torch.arange(capacity), rates).repeat(1, 2)
        self.cos, self.sin = angles.cos().to(DTYPE), angles.sin().to(DTYPE)

    @torch.no_grad()
    def forward(self, tokens: Tensor) -> Tensor:
        """Appends tokens [rows, n] (n = 1 once the prompt is in); logits [rows, n, vocabulary]."""
        x = F.embedding(tokens, self.weights["model.embed_tokens.weight"])
        for index in range(self.layers):
            prefix = f"model.layers.{index}."
            x = x + self._attention(index, self._norm(x, prefix + "input_layernorm"))
            x = x + self._mlp(prefix + "mlp.", self._norm(x, prefix + "post_attention_layernorm"))
        self.length += tokens.shape[1]
        return F.linear(self._norm(x, "model.norm"), self.weights["model.embed_tokens.weight"])

    def _attention(self, index: int, x: Tensor) -> Tensor:
        prefix, end = f"model.layers.{index}.self_attn.", self.length + x.shape[1]
        query = self._rotate(self._heads(prefix + "q_proj", x))
        cache = self.cache[index]
        cache[0, :, :, self.length : end] = self._rotate(self._heads(prefix + "k_proj", x))
        cache[1, :, :, self.length : end] = self._heads(prefix + "v_proj", x)
        keys, values = cache[0, :, :, :end], cache[1, :, :, :end]
        if x.shape[1] == 1:  # the query heads of a group share a read of their keys
            grouped = query.reshape(*keys.shape[:2], -1, self.head_dim)
            out = F.scaled_dot_product_attention(grouped, keys, values).reshape(query.shape)
        else:
            out = F.scaled_dot_product_attention(
                query, keys, values, is_causal=True, enable_gqa=True
            )
        return F.linear(out.transpose(1, 2).flatten(2), self.weights[prefix + "o_proj.weight"])

    def _mlp(self, prefix: str, x: Tensor) -> Tensor:
        gate = F.silu(F.linear(x, self.weights[prefix + "gate_proj.weight"]))
        up = F.linear(x, self.weights[prefix + "up_proj.weight"])
        return F.linear(gate * up, self.weights[prefix + "down_proj.weight"])

    def _heads(self, name: str, x: Tensor) -> Tensor:
        """[rows, n, hidden] to [rows, heads, n, head_dim]."""
        return (
            F.linear(x, self.weights[name + ".weight"])
            .unflatten(2, (-1, self.head_dim))
            .transpose(1, 2)
        )

    def _rotate(self, x: Tensor) -> Tensor:
        where = slice(self.length, self.length + x.shape[2])
        first, second = x.chunk(2, dim=-1)
        return x * self.cos[where] + torch.cat([-second, first], dim=-1) * self.sin[where]

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weights[name + ".weight"], self.epsilon)


def generate(
    model: LlamaForCausalLM,
    prompts: Tensor,
    new_tokens: int,
    temperatures: Tensor,
    generator: torch.Generator,
) -> Rollouts:
    """Continues prompts [rows, length]; temperatures [rows], 0 being greedy."""
    rows, length = prompts.shape
    decoder = BatchDecoder(model, rows, length + new_tokens)
    logits = decoder.forward(prompts)
    tokens, tops = [prompts], [logits.topk(TOP)]
    for _ in range(new_tokens):
        chosen = _choose(tops[-1].indices[:, -1, 0], logits[:, -1], temperatures, generator)
        tokens.append(chosen[:, None])
        logits = decoder.forward(tokens[-1])
        tops.append(logits.topk(TOP))
    return Rollouts(
        torch.cat(tokens, 1),
        torch.cat([top.indices.to(torch.int16) for top in tops], 1),
        torch.cat([top.values for top in tops], 1),
    )


def _choose(
    likeliest: Tensor, logits: Tensor, temperatures: Tensor, generator: torch.Generator
) -> Tensor:
    """The next token of each row [rows]: the likeliest, or a draw by the Gumbel trick."""
    if not temperatures.any():
        return likeliest
    uniform = torch.rand(logits.shape, generator=generator).clamp_min(1e-20)
    noisy = logits.float() - temperatures[:, None] * (-uniform.log()).log()
    return torch.where(temperatures > 0, noisy.argmax(-1), likeliest)
