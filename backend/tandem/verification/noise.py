"""Gumbel noise: argmax(score + noise) draws from softmax(score).

Coupled noise is a function of (seed, position, token) alone (Daliri et al. 2024, "Coupling
without communication"): draft and target that share it draw the same token wherever their
distributions allow, and the text does not depend on what was drafted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's increment and multipliers (Steele et al. 2014)
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
UNIT = 2.0**-53


def signed(value: int) -> int:
    """The same 64 bits as torch's int64 holds them."""
    value &= MASK
    return value - (1 << 64) if value >> 63 else value


def row_key(seed: int, position: int) -> int:
    """64 well-mixed bits from a request's seed and a position of its text."""
    return _mix(_mix(seed & MASK) + GOLDEN * (position + 1) & MASK)


def _mix(x: int) -> int:
    x = (x ^ x >> 30) * FIRST & MASK
    x = (x ^ x >> 27) * SECOND & MASK
    return x ^ x >> 31


def _mix_tensor(x: Tensor) -> Tensor:
    """`_mix` on int64 tensors, whose products wrap and whose shifts must be made logical."""
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * signed(FIRST)
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * signed(SECOND)
    return x ^ (x >> 31 & (1 << 33) - 1)


def coupled_gumbel(keys: Sequence[int], vocab_size: int, device: torch.device) -> Tensor:
    """[R, vocab] float32 noise, one row a key."""
    base = torch.tensor([signed(key) for key in keys], device=device)[:, None]
    token = torch.arange(1, vocab_size + 1, device=device) * signed(GOLDEN)
    bits = _mix_tensor(base + token) >> 11 & (1 << 53) - 1
    uniform = (bits.double() + 0.5) * UNIT
    return -torch.log(-torch.log(uniform)).float()


def random_gumbel(rows: int, vocab_size: int, generator: torch.Generator) -> Tensor:
    """[rows, vocab] float32 noise from the generator, on its device."""
    noise = torch.empty((rows, vocab_size), device=generator.device)
    return noise.exponential_(generator=generator).log_().neg_()
