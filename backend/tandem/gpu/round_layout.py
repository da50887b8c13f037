"""Where the passes of a round read and write, worked out for all its requests at once.

A round of B chains of k tokens has k + 1 passes: the draft's over each text's last two tokens, its
k - 1 passes over one drafted token each, and the target's over k + 1 rows each. All of them are
within k + 2 places behind one another. Rows that a request does not need go to the spare slot, and
belong to nobody's query.
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
    """[rows]"""
    slots: Ints
    """[rows]"""
    records: Ints
    """[passes, B, FIELDS]"""


def widths(length: int) -> list[int]:
    """Rows that each pass of a round of `length` tokens has for each request."""
    return [READ, *[1] * (length - 1), length + 1]


def tables_of(decodes: Sequence[Decode]) -> Ints:
    """All requests' block tables, one after the other."""
    blocks = chain.from_iterable(decode.request.blocks for decode in decodes)
    return np.fromiter(blocks, np.int64)


def layout(
    decodes: Sequence[Decode], requests: int, length: int, block_size: int, spare: int
) -> Layout:
    """For so many requests, those behind the decodes being nobody's, and chains of `length`."""
    ends, missing, drafted, firsts = _numbers(decodes, requests)
    real = ends > 0
    places = ends[:, None] - READ + np.arange(length + READ)
    slots = _slots(places, firsts, tables_of(decodes), block_size)
    used, records, columns = [], [], []
    for index, width in enumerate(widths(length)):
        first = 1 if index == length else 0 if index == 0 else index + 1
        column = np.arange(first, first + width)
        if index == 0:
            begin, count = ends - missing, missing
        elif index < length:
            begin, count = ends + index - 1, np.where(drafted > index, 1, 0)
        else:
            begin, count = ends - 1, np.where(real, drafted + 1, 0)
        offset = begin - places[:, first]  # of its rows among the pass's; the first pass's alone
        records.append(_records(width, offset, count, begin, firsts))
        within = np.arange(width) - offset[:, None]
        used.append((within >= 0) & (within < count[:, None]))
        columns.append(column)
    return Layout(
        _rows(places, columns, used, 0), _rows(slots, columns, used, spare), np.stack(records)
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


def _records(width: int, offset: Ints, count: Ints, begin: Ints, firsts: Ints) -> Ints:
    """[B, FIELDS] as `tree_attention.records`."""
    found = np.zeros((len(count), FIELDS), np.int64)
    rows = np.arange(len(count)) * width + offset
    found[:, :5] = np.stack([rows, count, begin, begin + count, firsts], 1)
    return np.where(count[:, None] > 0, found, 0)


def _rows(values: Ints, columns: Sequence[Ints], used: Sequence[Ints], instead: int) -> Ints:
    """Of all passes, in order."""
    parts = [
        np.where(one, values[:, column], instead).reshape(-1)
        for column, one in zip(columns, used, strict=True)
    ]
    return np.concatenate(parts)
