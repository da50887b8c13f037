"""A pass by the kernels: the whole step is one call."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from tandem.attention.paged import PagedKVCache
from tandem.attention.plan import Query
from tandem.cpu.library import load_kernels
from tandem.cpu.linear import KernelLinear
from tandem.cpu.sampling import NO_TEXT, Texts, limits_of
from tandem.cpu.structures import BIAS, CHAIN, CHAINS, STEP, Entry, Layer, Matrix, Model
from tandem.models.decoder import Layer as DecoderLayer
from tandem.models.decoder import Passed, Stack
from tandem.models.feature_head import FeatureHead
from tandem.models.layers import Linear, RMSNorm
from tandem.verification.judging import Draws, Gate

Ints: TypeAlias = "array[int]"


class Records(NamedTuple):
    """Of chains, as in the kernels' `Chains`."""

    chains: Ints
    blocks: Ints
    biases: Ints
    longs: Ints
    """Texts, then keys, and then room for the tokens, ..."""
    keys: int
    """... which begin at these addresses."""
    tokens: int


class States(NamedTuple):
    """Hidden states for a draft head."""

    hidden: Tensor | None
    """[T, hidden]; [T, width] where they are yet to be fused."""
    fused: bool


class Reading(NamedTuple):
    """A pass behind which a draft begins."""

    tokens: Sequence[int]
    queries: Sequence[Query]
    rows: Sequence[int]
    """[B] at the texts' ends."""


class Wanted(NamedTuple):
    """Of a pass, beside logits."""

    layers: Sequence[int] = ()
    """Whose inputs are tapped."""
    tapped: int = 0
    normed: int = 0
    """Where hidden states go, or 0."""
    picks_hidden: bool = False
    best: bool = False
    """Each row's likeliest token."""


class Packed(NamedTuple):
    """A pass as the kernels take it."""

    step: bytes
    small: Ints
    large: Ints
    """What it points to: tokens, and then room for the likeliest ones."""


class _Gated:
    """What the kernels are told, and tell, of chains that may end early."""

    def __init__(self, gate: Gate, count: int, longest: int) -> None:
        self.least, self._longest = gate.least, longest
        self.lengths = array("i", bytes(4 * count))
        self._floats = array("f", [1.0] * count + [0.0] * (count * longest))
        """Chances that all of a chain is kept, and shares of the likeliest tokens."""
        reach = self._floats.buffer_info()[0]
        sure = reach + 4 * count
        self.addresses = (_address(gate.kept), sure, reach, _address(self.lengths))

    def sure(self, draws: Draws) -> list[Sequence[float]]:
        """Of each chain, one more than tokens where it ended early."""
        starts = itertools.count(len(self.lengths), self._longest)
        return [
            self._floats[at : at + min(length + 1, draw.length)]
            for at, length, draw in zip(starts, self.lengths, draws.chains, strict=False)
        ]


NO_STATES = States(None, False)
LOGITS = Wanted()
NOT_GATED = (0, 0, 0, 0)


class Room:
    """Where passes leave their logits, one in the place of the other: behind a pass, which has the
    caches forget all else, each call of torch takes 10 us."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self._whole = torch.empty(0, columns)
        self._first: dict[int, Tensor] = {}
        """By how many rows."""
        self.address = 0

    def rows(self, count: int) -> Tensor:
        """[count, columns] float32, of any content."""
        rows = self._first.get(count)
        if rows is None:
            if count > len(self._whole):
                self._first, self._whole = {}, torch.empty(0)  # before there are two of them
                self._whole = torch.empty(count, self.columns)
                self.address = self._whole.data_ptr()
            rows = self._first[count] = self._whole[:count]
        return rows


class KernelStack:
    """Layers with their KV cache, norm and head, whose linear layers are the kernels' already."""

    def __init__(self, stack: Stack, cache: PagedKVCache, first: int = 0) -> None:
        """first: the layer of the cache where these begin."""
        kernels, config = load_kernels(), stack.config
        assert kernels is not None
        self.config = config
        self._forward = kernels.tandem_forward
        self._chains = kernels.tandem_chains
        self._space = ctypes.c_void_p(kernels.tandem_space())
        weakref.finalize(self, kernels.tandem_release, self._space)
        self._block_size = cache.block_size
        self._kept: list[object] = [stack, cache]
        """What the structures point to."""
        layers = (Layer * len(stack.layers))()
        for index, layer in enumerate(stack.layers):
            assert isinstance(layer, DecoderLayer)
            layers[index] = self._layer(layer, cache.data[first + index])
        self._model = Model(
            len(layers),
            config.hidden_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.intermediate_size,
            cache.block_size,
            torch.get_num_threads(),
            cache.data.dtype == torch.bfloat16,
            config.norm_eps,
            layers,
            self._table(stack.embed.weight),
            self._vector(stack.norm),
            self._floats(stack.rope.cos),
            self._floats(stack.rope.sin),
            self._matrix(stack.head),
            self._entry(stack) if isinstance(stack, FeatureHead) else Entry(),
        )
        self._room = Room(self._model.head.rows)

    def _layer(self, layer: DecoderLayer, cache: Tensor) -> Layer:
        attention, mlp = layer.attention, layer.mlp
        return Layer(
            self._matrix(attention.qkv),
            self._matrix(attention.out),
            self._matrix(mlp.gate_up),
            self._matrix(mlp.down),
            self._vector(layer.input_norm),
            self._vector(layer.post_norm),
            self._vector(attention.q_norm),
            self._vector(attention.k_norm),
            cache.data_ptr(),
        )

    def _entry(self, head: FeatureHead) -> Entry:
        fusion, scales = head.fusion, None
        if fusion is not None and fusion.norms:
            scales = self._floats(torch.cat(list(fusion.norms.parameters())))
        return Entry(
            Matrix() if fusion is None else self._matrix(fusion.fc),
            scales,
            1 if fusion is None else max(1, len(fusion.norms)),
            self._vector(head.token_norm),
            self._vector(head.hidden_norm),
            Matrix() if head.project is None else self._matrix(head.project),
            head.hidden_first,
            head.blind_start,
            head.normed_residual,
            head.norm_output,
        )

    @staticmethod
    def _matrix(linear: Linear) -> Matrix:
        assert isinstance(linear.kernel, KernelLinear)
        return linear.kernel.matrix

    @staticmethod
    def _table(weight: Tensor) -> Matrix:
        return Matrix(weight.data_ptr(), None, *weight.shape, weight.dtype == torch.bfloat16)

    def _vector(self, norm: nn.Module | None) -> int | None:
        return self._floats(norm.weight) if isinstance(norm, RMSNorm) else None

    def _floats(self, tensor: Tensor) -> int:
        """Its address as contiguous floats."""
        floats = tensor.detach().float().contiguous()
        self._kept.append(floats)
        return floats.data_ptr()

    def forward(
        self,
        tokens: Sequence[int] | Tensor,
        queries: Sequence[Query],
        rows: Sequence[int] | None,
        taps: Sequence[int] | None,
        states: States | None = None,
        picks_hidden: bool = False,
    ) -> Passed:
        """As `ModelRunner.forward`; states: for a draft head; picks_hidden: of hidden states behind
        the last layer, those of `rows` alone are wanted, [R, hidden]. The logits are overwritten by
        the next pass."""
        flat = _numbers(tokens)
        count = len(flat)
        given = NO_STATES if states is None else self._checked(states, count)
        picked = range(count) if rows is None else rows
        logits = self._room.rows(len(picked))
        layers = sorted(taps) if taps else []
        assert not picks_hidden or layers in ([], [self._model.layers])
        features, tapped, normed = None, 0, 0
        if taps is not None:
            kept = len(picked) if picks_hidden else count
            features = torch.empty(kept, max(1, len(layers)) * self.config.hidden_size)
            tapped, normed = (features.data_ptr(), 0) if taps else (0, features.data_ptr())
        wanted = Wanted(layers, tapped, normed, picks_hidden, best=True)
        packed = self._packed(flat, queries, picked, wanted, given)
        self._forward(self._model, packed.step, self._space)
        return Passed(logits, features, packed.large[count:].tolist())

    def _packed(
        self,
        flat: Sequence[int],
        queries: Sequence[Query],
        picked: Sequence[int],
        wanted: Wanted = LOGITS,
        given: States = NO_STATES,
    ) -> Packed:
        count = len(flat)
        records, blocks, parents = self._queries(queries)
        # two arrays, for behind a pass each takes as long as filling it
        small = array("i", [*records, *blocks, *parents, *picked, *wanted.layers])
        large = array("q", [*flat, *[0] * len(picked)] if wanted.best else flat)
        at, at_blocks = _address(small), _address(small) + 4 * len(records)
        at_picked = at_blocks + 4 * (len(blocks) + len(parents))
        step = STEP.pack(
            count,
            len(queries),
            len(picked),
            len(wanted.layers),
            _address(large),
            _pointer(given.hidden),
            given.fused,
            wanted.picks_hidden,
            at,
            at_blocks,
            at_blocks + 4 * len(blocks),
            at_picked,
            at_picked + 4 * len(picked),
            self._room.address,
            wanted.tapped,
            wanted.normed,
            _address(large) + 8 * count if wanted.best else 0,
        )
        return Packed(step, small, large)

    def _checked(self, states: States, rows: int) -> States:
        """As the kernels take them."""
        assert states.hidden is not None
        hidden = states.hidden.float().contiguous()
        width = self.config.hidden_size if states.fused else self._model.entry.fuse.columns
        if hidden.shape != (rows, width):
            raise ValueError(f"hidden states of {tuple(hidden.shape)} where {width} are due")
        return States(hidden, states.fused)

    def chains(
        self,
        first: Tensor | Reading,
        queries: Sequence[Query],
        draws: Draws,
        vocab: int,
        states: Tensor | None = None,
        ids: Tensor | None = None,
    ) -> tuple[list[list[int]], list[Sequence[float]]]:
        """Drafts B chains, each token drawn behind the one before it; what `steps.Grown` holds.

        first: logits [B, V] of the first tokens, or what is read before; queries: of the tokens
        that are fed; vocab: V, the target's; states [B, hidden] for a draft head; ids [own
        vocabulary]: what its tokens are to the target.
        """
        read = logits = None
        if isinstance(first, Reading):
            self._room.rows(len(queries))
            read = self._packed(*first)
        else:
            logits = first.contiguous()
        states = None if states is None else states.float().contiguous()
        longest = max([draw.length for draw in draws.chains])
        records = self._records(queries, draws, vocab, longest)
        gated = _Gated(draws.gate, len(queries), longest) if draws.gate else None
        chains = CHAINS.pack(
            len(queries),
            longest,
            vocab,
            gated.least if gated else 0.0,
            _address(records.chains),
            _pointer(logits),
            _pointer(states),
            _pointer(ids),
            _address(records.blocks),
            _address(records.longs),
            _address(records.biases),
            records.keys,
            draws.seed,
            _pointer(draws.q),
            records.tokens,
            *(gated.addresses if gated else NOT_GATED),
        )
        self._chains(self._model, chains, read and read.step, self._space)
        drawn = len(records.longs) - len(queries) * longest
        lengths = gated.lengths if gated else [draw.length for draw in draws.chains]
        tokens = [
            records.longs[at : at + length].tolist()
            for at, length in zip(itertools.count(drawn, longest), lengths, strict=False)
        ]
        return tokens, gated.sure(draws) if gated else []

    def _records(self, queries: Sequence[Query], draws: Draws, vocab: int, longest: int) -> Records:
        chains, blocks, biases = array("b"), array("i"), array("b")
        texts, keys = Texts(), list[int]()
        for draw, query in zip(draws.chains, queries, strict=True):
            params = draw.request.params
            limits = limits_of(params, vocab)
            text = texts.of(draw.request) if params.penalized else NO_TEXT
            bias = len(biases) // BIAS.size, len(params.logit_bias)
            where = len(blocks), query.start, draw.q_row
            chains.frombytes(CHAIN.pack(*limits, *text, *bias, draw.noise, draw.length, *where))
            blocks.extend(query.blocks[: -(-query.end // self._block_size)])
            for one in params.logit_bias.items():
                biases.frombytes(BIAS.pack(*one))
            keys += [*draw.keys, *[0] * (longest - len(draw.keys))]
        longs = array("Q", [*texts.tokens, *keys, *[0] * len(keys)])
        at_keys = _address(longs) + 8 * len(texts.tokens)
        return Records(chains, blocks, biases, longs, at_keys, at_keys + 8 * len(keys))

    def _queries(self, queries: Sequence[Query]) -> tuple[list[int], list[int], list[int]]:
        """[queries, 5] as in the kernels' `Query`, and the tables that it points into."""
        records, blocks, parents = list[int](), list[int](), list[int]()
        for query in queries:
            tree = -1
            if query.parents is not None:
                tree = len(parents)
                parents.extend(query.parents)
            records.extend((len(blocks), query.start, query.stored, query.length, tree))
            blocks.extend(query.blocks[: -(-query.end // self._block_size)])
        return records, blocks, parents


def _numbers(tokens: Sequence[int] | Tensor) -> Sequence[int]:
    return tokens.tolist() if isinstance(tokens, Tensor) else tokens


def _address(numbers: array[Any]) -> int:
    return numbers.buffer_info()[0]


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
