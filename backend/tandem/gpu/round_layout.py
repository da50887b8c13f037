"""Where the passes of a round read and write, worked out for all its requests at once.

A round of B chains of k tokens has k + 1 passes: the draft's over each text's last two tokens, its
k - 1 passes over one drafted token each, and the target's over k + 1 rows each. All of these rows
stand in the k + 2 places from each text's last but one. Rows that a request does not need go to the
spare slot, and belong to nobody's query.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np

from tandem.attention.plan import Ints
from tandem.gpu.tree_attention import FIELDS
from tandem.scheduler import Decode

READ = 2  # tokens of a text that the first pass takes: the last, and one whose draft was kept whole


class Layout(NamedTuple):
    """Of all passes, one behind the other."""

    positions: Ints
    """[rows] in their texts."""
    slots: Ints
    """[rows] in the cache."""
    records: Ints
    """[passes, B, FIELDS] as `tree_attention.records`."""


def widths(length: int) -> list[int]:
    """Rows that each pass of a round of `length` tokens has for each request."""
    return [READ, *[1] * (length - 1), length + 1]


def tables_of(decodes: Sequence[Decode]) -> Ints:
    """All requests' block tables, one after the other."""
    blocks = chain.from_iterable(decode.request.blocks for decode in decodes)
    return np.fromiter(blocks, np.int64)


class _Pass(NamedTuple):
    """Rows of one pass; of each request, they stand behind one another."""

    width: int
    """For each request, used or not."""
    column: int
    """Of the first one's place among a request's places."""
    skipped: Ints
    """[B] unused rows before the used ones, and..."""
    used: Ints
    """... [B] those."""


def layout(
    decodes: Sequence[Decode],
    tables: Ints,
    requests: int,
    length: int,
    block_size: int,
    spare: int,
) -> Layout:
    """For so many requests, those behind the decodes being nobody's, and chains of `length`.
    tables: of the decodes."""
    ends, missing, drafted, firsts = _numbers(decodes, requests)
    places = ends[:, None] - READ + np.arange(length + READ)
    slots = _slots(places, firsts, tables, block_size)
    none = np.zeros_like(ends)
    passes = [_Pass(READ, 0, READ - missing, missing)]
    passes += [_Pass(1, level + 1, none, (drafted > level) * 1) for level in range(1, length)]
    passes.append(_Pass(length + 1, 1, none, (drafted + 1) * (ends > 0)))
    return Layout(
        np.concatenate([_rows(one, places, 0) for one in passes]),
        np.concatenate([_rows(one, slots, spare) for one in passes]),
        np.stack([_records(one, places, firsts) for one in passes]),
    )


def _numbers(decodes: Sequence[Decode], requests: int) -> tuple[Ints, Ints, Ints, Ints]:
    """[B] of each: tokens, those that the draft lacks, those to be drafted, and the first block in
    the tables."""
    found = np.zeros((4, requests), np.int64)
    for place, (request, lookahead) in enumerate(decodes):
        count = len(request.tokens)
        found[:3, place] = count, lookahead and count - request.draft_computed, lookahead
    sizes = (len(decode.request.blocks) for decode in decodes)
    found[3, : len(decodes)] = list(accumulate(sizes, initial=0))[:-1]
    return found[0], found[1], found[2], found[3]


def _slots(places: Ints, firsts: Ints, tables: Ints, block_size: int) -> Ints:
    """[B, places]; anything where there is no block."""
    if not len(tables):
        return np.zeros_like(places)
    at = firsts[:, None] + places.clip(0) // block_size
    return tables[at.clip(max=len(tables) - 1)] * block_size + places % block_size


def _records(one: _Pass, places: Ints, firsts: Ints) -> Ints:
    """[B, FIELDS] as `tree_attention.records`."""
    found = np.zeros((len(places), FIELDS), np.int64)
    rows = np.arange(len(places)) * one.width + one.skipped
    begin = places[:, one.column] + one.skipped
    found[:, :5] = np.stack([rows, one.used, begin, begin + one.used, firsts], 1)
    return np.where(one.used[:, None] > 0, found, 0)


def _rows(one: _Pass, values: Ints, instead: int) -> Ints:
    """[B * width] of the pass, from those of all places [B, places]."""
    at = np.arange(one.width) - one.skipped[:, None]
    used = (at >= 0) & (at < one.used[:, None])
    return np.where(used, values[:, one.column : one.column + one.width], instead).reshape(-1)
