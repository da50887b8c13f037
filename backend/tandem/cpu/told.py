"""What the kernels are told of passes and chains, and read as it is: `told.h`, field by field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from tandem.attention.plan import Query


class Reading(NamedTuple):
    """A pass, and which of its logits are wanted."""

    tokens: Sequence[int]
    queries: Sequence[Query]
    rows: Sequence[int]


class States(NamedTuple):
    """Hidden states for a draft head."""

    hidden: Tensor
    """[T, hidden]; [T, width] where they are yet to be fused."""
    fused: bool


class Wanted(NamedTuple):
    """Of a pass, beside logits. (For an address that is not there: 0.)"""

    layers: Sequence[int]
    """Whose inputs are tapped."""
    tapped: int
    normed: int
    """Addresses of room for hidden states."""
    picks_hidden: bool
    """Of the rows whose logits are wanted, no others."""
    states: int
    """The address of those that a draft head takes, and..."""
    fused: bool
    """... whether it is these that it takes, or they are yet to be fused."""


class Chaining(NamedTuple):
    """How chains are drafted. (For an address that is not there: 0.)"""

    vocabulary: int
    """The target's."""
    logits: int
    """The addresses of those of the first tokens, or room for them, ..."""
    states: int
    """... of hidden states [B, hidden] that a draft head takes, ..."""
    ids: int
    """... of what a model's own tokens are to the target, ..."""
    q: int
    """... and of room for distributions."""
    seed: int
    """Of all noise but keyed noise."""
    least: float
    """Chance of being kept, before a token with less of which a chain ends; 0: none does."""
    kept: int
    """The address of `Gate.kept`."""
