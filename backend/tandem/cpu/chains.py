"""Chains of draft tokens as the kernels take them, and what the kernels make of them."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from tandem.attention.plan import Query
from tandem.cpu.packing import Ints, address, pointer
from tandem.cpu.sampling import NO_TEXT, Texts, limits_of
from tandem.cpu.structures import BIAS, CHAIN, CHAINS
from tandem.verification.judging import Draws, Gate


class _Records(NamedTuple):
    """Of all chains, as in the kernels' `Chains`."""

    chains: Ints
    blocks: Ints
    biases: Ints
    longs: Ints
    """Texts, then keys, and then room for the tokens, ..."""
    keys: int
    """... which begin at these addresses."""
    tokens: int


class _Gated:
    """What the kernels are told, and tell, of chains that may end early."""

    def __init__(self, gate: Gate, count: int, longest: int) -> None:
        self.least, self._longest = gate.least, longest
        self.lengths = array("i", bytes(4 * count))
        self._floats = array("f", [1.0] * count + [0.0] * (count * longest))
        """Chances that all of a chain is kept, and shares of the likeliest tokens."""
        reach = self._floats.buffer_info()[0]
        sure = reach + 4 * count
        self.addresses = (address(gate.kept), sure, reach, address(self.lengths))

    def sure(self, draws: Draws) -> list[Sequence[float]]:
        """Of each chain, one more than tokens where it ended early."""
        starts = itertools.count(len(self.lengths), self._longest)
        return [
            self._floats[at : at + min(length + 1, draw.length)]
            for at, length, draw in zip(starts, self.lengths, draws.chains, strict=False)
        ]


NOT_GATED = (0, 0, 0, 0)


class PackedChains:
    """B chains; `packed` is for the kernels, which then have written the rest."""

    def __init__(
        self,
        queries: Sequence[Query],
        draws: Draws,
        vocab: int,
        block_size: int,
        logits: Tensor | None,
        states: Tensor | None,
        ids: Tensor | None,
    ) -> None:
        """As in `KernelStack.chains`; logits, states and ids are contiguous, and kept by the
        caller."""
        self._draws = draws
        self._longest = max([draw.length for draw in draws.chains])
        self._records = _records(queries, draws, vocab, block_size, self._longest)
        self._gated = _Gated(draws.gate, len(queries), self._longest) if draws.gate else None
        records, gated = self._records, self._gated
        self.packed = CHAINS.pack(
            len(queries),
            self._longest,
            vocab,
            gated.least if gated else 0.0,
            address(records.chains),
            pointer(logits),
            pointer(states),
            pointer(ids),
            address(records.blocks),
            address(records.longs),
            address(records.biases),
            records.keys,
            draws.seed,
            pointer(draws.q),
            records.tokens,
            *(gated.addresses if gated else NOT_GATED),
        )

    def tokens(self) -> list[list[int]]:
        chains, longs = self._draws.chains, self._records.longs
        first = len(longs) - len(chains) * self._longest
        lengths = self._gated.lengths if self._gated else [draw.length for draw in chains]
        starts = itertools.count(first, self._longest)
        return [
            longs[at : at + length].tolist() for at, length in zip(starts, lengths, strict=False)
        ]

    def sure(self) -> list[Sequence[float]]:
        """As in `steps.Grown`."""
        return self._gated.sure(self._draws) if self._gated else []


def _records(
    queries: Sequence[Query], draws: Draws, vocab: int, block_size: int, longest: int
) -> _Records:
    chains, blocks, biases = array("b"), array("i"), array("b")
    texts, keys = Texts(), list[int]()
    for draw, query in zip(draws.chains, queries, strict=True):
        params = draw.request.params
        limits = limits_of(params, vocab)
        text = texts.of(draw.request) if params.penalized else NO_TEXT
        bias = len(biases) // BIAS.size, len(params.logit_bias)
        where = len(blocks), query.start, draw.q_row
        chains.frombytes(CHAIN.pack(*limits, *text, *bias, draw.noise, draw.length, *where))
        blocks.extend(query.blocks[: -(-query.end // block_size)])
        for one in params.logit_bias.items():
            biases.frombytes(BIAS.pack(*one))
        keys += [*draw.keys, *[0] * (longest - len(draw.keys))]
    longs = array("Q", [*texts.tokens, *keys, *[0] * len(keys)])
    at_keys = address(longs) + 8 * len(texts.tokens)
    return _Records(chains, blocks, biases, longs, at_keys, at_keys + 8 * len(keys))
