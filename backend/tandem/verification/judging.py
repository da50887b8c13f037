"""What kernels are told about rows of scores, and what they answer."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from tandem.request import Request

GREEDY, KEYED, RANDOM = 0, 1, 2
KINDS = 3


class RowPlan(NamedTuple):
    """What to do with one row of scores."""

    noise: int
    """GREEDY: none; KEYED; RANDOM."""
    key: int = 0
    """Of keyed noise: `noise.row_key`."""
    token: int = 0
    """The drafted token behind this place, and..."""
    q_row: int = -1
    """... the row of q that it was drawn from; -1: nothing is judged here."""


class Judged(NamedTuple):
    """Of R rows, still on the device."""

    tokens: Tensor
    """[R] int64: drawn from the row's distribution, or from what is left of it."""
    kept: Tensor
    """[R] int8: whether the drafted token is kept."""


Judge = Callable[[Tensor, Tensor | None, Sequence[RowPlan], int], Judged]
"""Of scores [R, V], q [places, V], plans and this launch's seed, of 31 bits."""


class Penalties(NamedTuple):
    """What counts against being said again."""

    text: Sequence[int]
    prompt: int
    """Of its tokens the first ones, which are the prompt's."""
    repetition: float
    frequency: float
    presence: float


class ChainDraw(NamedTuple):
    """How a chain of tokens is drawn."""

    request: Request
    noise: int
    length: int
    """Tokens."""
    keys: Sequence[int]
    """Of each token's noise; empty unless it is KEYED."""
    q_row: int
    """The row of q, places in order, for what the first token is drawn from; -1: for none."""
    limits: tuple[float, float, int, float] | tuple[()] = ()
    """Of `scores.limits_of`, where it is not greedy."""
    penalties: Penalties | tuple[()] = ()
    biases: Sequence[tuple[int, float]] = ()
    """Tokens, and what is added to their logits."""


class VerifiedChain(NamedTuple):
    """How a drafted chain is verified on CPU cores, which read it as it is (`cpu/told.h`)."""

    noise: int
    limits: tuple[float, float, int, float] | tuple[()]
    """Of `scores.limits_of`, where it is not greedy."""
    keys: Sequence[int]
    """Of the noise at each of its rows; empty unless it is KEYED."""
    tokens: Sequence[int]
    """Drafted."""
    q_row: int
    """The row of q that the first was drawn from; -1: they are followed while they are what is
    drawn."""


class Gate(NamedTuple):
    """Where chains end early."""

    least: float
    """Before a token that would be kept, and all before it, with a smaller chance."""
    kept: array[float]
    """[3 kinds of noise, SHARES] chance that a token is kept behind kept ones, by the share of the
    likeliest one."""


class Draws(NamedTuple):
    """How B chains are drawn."""

    chains: Sequence[ChainDraw]
    seed: int
    """Of the draws that are RANDOM, 31 bits."""
    q: Tensor | None
    """[.., V]"""
    gate: Gate | None = None
    """None: every chain has its length."""
