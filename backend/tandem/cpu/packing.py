"""A pass as the kernels take it: numbers in a few arrays, and their addresses in one structure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from tandem.attention.plan import Query
from tandem.cpu.structures import STEP

Ints: TypeAlias = "array[int]"


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
    """Of a pass, beside logits."""

    layers: Sequence[int] = ()
    """Whose inputs are tapped."""
    tapped: int = 0
    normed: int = 0
    """Where hidden states go, or 0."""
    picks_hidden: bool = False
    """Of the rows whose logits are wanted, no others."""
    best: bool = False
    """Each row's likeliest token."""


LOGITS = Wanted()
BEST = Wanted(best=True)


class Packed(NamedTuple):
    """A pass as the kernels take it."""

    step: bytes
    small: Ints
    large: Ints
    """What it points to: tokens, and then room for the likeliest ones."""


def pack_pass(
    read: Reading,
    block_size: int,
    logits: int,
    wanted: Wanted = LOGITS,
    given: States | None = None,
) -> Packed:
    """logits: the address of room for [rows, vocabulary]."""
    count, picked = len(read.tokens), read.rows
    records, blocks, parents = _tables(read.queries, block_size)
    # two arrays, for behind a pass each takes as long as filling it
    small = array("i", [*records, *blocks, *parents, *picked, *wanted.layers])
    room = [0] * len(picked) if wanted.best else ()
    large = array("q", [*read.tokens, *room])
    at, at_blocks = address(small), address(small) + 4 * len(records)
    at_picked = at_blocks + 4 * (len(blocks) + len(parents))
    step = STEP.pack(
        count,
        len(read.queries),
        len(picked),
        len(wanted.layers),
        address(large),
        pointer(given and given.hidden),
        given is not None and given.fused,
        wanted.picks_hidden,
        at,
        at_blocks,
        at_blocks + 4 * len(blocks),
        at_picked,
        at_picked + 4 * len(picked),
        logits,
        wanted.tapped,
        wanted.normed,
        address(large) + 8 * count if wanted.best else 0,
    )
    return Packed(step, small, large)


def _tables(queries: Sequence[Query], block_size: int) -> tuple[list[int], list[int], list[int]]:
    """[queries, 5] as in the kernels' `Query`, and the tables that it points into."""
    records, blocks, parents = list[int](), list[int](), list[int]()
    for query in queries:
        tree = -1
        if query.parents is not None:
            tree = len(parents)
            parents.extend(query.parents)
        records.extend((len(blocks), query.start, query.stored, query.length, tree))
        blocks.extend(query.blocks[: -(-query.end // block_size)])
    return records, blocks, parents


def address(numbers: array[Any]) -> int:
    return numbers.buffer_info()[0]


def pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
