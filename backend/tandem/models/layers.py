"""The decoder's building blocks: linear layers, RMS norm, rotary embedding."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tandem.models.config import ModelConfig


class Linear(nn.Module):
    """y = x Wᵀ + b."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        dtype: torch.dtype,
        gated: bool = False,
    ) -> None:
        """gated: the first half of y are the gates of the others."""
        super().__init__()
        self.gated = gated
        self.weight = nn.Parameter(
            torch.empty(out_features, in_features, dtype=dtype), requires_grad=False
        )
        self.bias = (
            nn.Parameter(torch.empty(out_features, dtype=dtype), requires_grad=False)
            if bias
            else None
        )
        self.kernel: Callable[[Tensor], Tensor] | None = None
        """Computes it in the place of torch."""

    def forward(self, x: Tensor) -> Tensor:
        if self.kernel is not None:
            return self.kernel(x)
        return F.linear(x, self.weight, self.bias)


class Embedding(nn.Module):
    """One row a token."""

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width, dtype=dtype), requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.weight.index_select(0, tokens)


def computes_in(dtype: str) -> bool:
    """Whether this processor has arithmetic of its own for the format, or emulates it slowly."""
    if dtype == "bfloat16" and platform.machine() == "x86_64":
        # oneDNN also says yes to AVX-512 alone, which emulates.
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    native = {
        "bfloat16": torch.ops.mkldnn._is_mkldnn_bf16_supported,
        "float16": torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return dtype not in native or bool(native[dtype]())


class RMSNorm(nn.Module):
    """Root-mean-square norm with a scale."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rope_frequencies(config: ModelConfig) -> Tensor:
    """Angular frequency of each pair of a head, [head_dim / 2], radians a position.

    With llama3 scaling, long wavelengths are stretched by `factor` and the band between the
    two cut-offs is blended (Llama 3.1's published formula).
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return frequencies / scaling.factor * (1 - blend) + frequencies * blend


class RotaryTable(nn.Module):
    """Cosines and sines of every position, [max_position, 1, head_dim], signs folded in. They are
    kept in float32, for those who compute in it whatever they store."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(config.max_position).float(), rope_frequencies(config))
        cos, sin = angles.cos(), angles.sin()
        self.dtype = dtype
        self.register_buffer("cos", torch.cat([cos, cos], -1)[:, None])
        self.register_buffer("sin", torch.cat([-sin, sin], -1)[:, None])
        self.cos: Tensor
        self.sin: Tensor

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[T] positions to two factors [T, 1, head_dim]."""
        cos, sin = (table.index_select(0, positions) for table in (self.cos, self.sin))
        return cos.to(self.dtype), sin.to(self.dtype)


def rotate_(x: Tensor, rope: tuple[Tensor, Tensor]) -> None:
    """Rotates heads x [T, heads, head_dim] to their positions, in place (half-split pairs)."""
    cos, sin = rope
    torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin, out=x)
