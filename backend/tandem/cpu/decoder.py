"""A pass by the kernels: the whole step is one call."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from tandem.attention.paged import PagedKVCache
from tandem.attention.plan import Query
from tandem.cpu.library import load_kernels
from tandem.cpu.linear import KernelLinear
from tandem.cpu.sampling import Texts, limits_of
from tandem.cpu.structures import BIAS, CHAIN, CHAINS, STEP, Entry, Layer, Matrix, Model
from tandem.models.decoder import Layer as DecoderLayer
from tandem.models.decoder import Passed, Stack
from tandem.models.feature_head import FeatureHead
from tandem.models.layers import Linear, RMSNorm
from tandem.verification.judging import Draws

Ints: TypeAlias = "array[int]"


class Records(NamedTuple):
    """Of chains, as in the kernels' `Chains`."""

    chains: Ints
    blocks: Ints
    texts: Ints
    biases: Ints
    keys: Ints


class States(NamedTuple):
    """Hidden states for a draft head."""

    hidden: Tensor
    """[T, hidden]; [T, width] where they are yet to be fused."""
    fused: bool


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
            1,
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
    ) -> Passed:
        """As `ModelRunner.forward_tapped`; states: for a draft head."""
        flat = _longs(tokens)
        hidden = None if states is None else self._checked(states, len(flat))
        picked = array("i", range(len(flat)) if rows is None else rows)
        logits = torch.empty(len(picked), self._model.head.rows)
        wanted = array("i", sorted(taps or ()))
        features, tapped, normed = None, 0, 0
        if taps is not None:
            features = torch.empty(len(flat), max(1, len(wanted)) * self.config.hidden_size)
            tapped, normed = (features.data_ptr(), 0) if taps else (0, features.data_ptr())
        query, blocks, parents = self._queries(queries)
        best = array("q", bytes(8 * len(picked)))
        step = STEP.pack(
            len(flat),
            len(queries),
            len(picked),
            len(wanted),
            _address(flat),
            _pointer(hidden),
            states is not None and states.fused,
            _address(query),
            _address(blocks),
            _address(parents),
            _address(picked),
            _address(wanted),
            logits.data_ptr(),
            tapped,
            normed,
            _address(best),
        )
        self._model.threads = torch.get_num_threads()
        self._forward(self._model, step, self._space)
        return Passed(logits, features, best.tolist())

    def _checked(self, states: States, rows: int) -> Tensor:
        """As the kernels take them."""
        hidden = states.hidden.float().contiguous()
        width = self.config.hidden_size if states.fused else self._model.entry.fuse.columns
        if hidden.shape != (rows, width):
            raise ValueError(f"hidden states of {tuple(hidden.shape)} where {width} are due")
        return hidden

    def chains(
        self,
        logits: Tensor,
        queries: Sequence[Query],
        draws: Draws,
        states: Tensor | None = None,
        ids: Tensor | None = None,
    ) -> list[list[int]]:
        """Drafts B chains, each token drawn behind the one before it; their tokens.

        logits [B, V] of the first tokens; queries: of the tokens that are fed; states [B, hidden]
        for a draft head; ids [own vocabulary]: what its tokens are to the target.
        """
        logits = logits.contiguous()
        states = None if states is None else states.float().contiguous()
        longest = max([draw.length for draw in draws.chains])
        records = self._records(queries, draws, logits.shape[1], longest)
        tokens = array("q", bytes(8 * len(queries) * longest))
        chains = CHAINS.pack(
            len(queries),
            longest,
            logits.shape[1],
            _address(records.chains),
            logits.data_ptr(),
            _pointer(states),
            _pointer(ids),
            _address(records.blocks),
            _address(records.texts),
            _address(records.biases),
            _address(records.keys),
            draws.seed,
            _pointer(draws.q),
            _address(tokens),
        )
        self._model.threads = torch.get_num_threads()
        self._chains(self._model, chains, self._space)
        return [
            tokens[at * longest : at * longest + draw.length].tolist()
            for at, draw in enumerate(draws.chains)
        ]

    def _records(self, queries: Sequence[Query], draws: Draws, vocab: int, longest: int) -> Records:
        chains, blocks, biases, keys = array("b"), array("i"), array("b"), array("Q")
        texts = Texts()
        for draw, query in zip(draws.chains, queries, strict=True):
            params = draw.request.params
            limits, text = limits_of(params, vocab), texts.of(draw.request)
            bias = len(biases) // BIAS.size, len(params.logit_bias)
            where = len(blocks), query.start, draw.q_row
            chains.frombytes(CHAIN.pack(*limits, *text, *bias, draw.noise, draw.length, *where))
            blocks.extend(query.blocks[: -(-query.end // self._block_size)])
            for one in params.logit_bias.items():
                biases.frombytes(BIAS.pack(*one))
            keys.extend((*draw.keys, *(0,) * (longest - len(draw.keys))))
        return Records(chains, blocks, texts.tokens, biases, keys)

    def _queries(self, queries: Sequence[Query]) -> tuple[Ints, Ints, Ints]:
        """[queries, 5] as in the kernels' `Query`, and the tables that it points into."""
        records, blocks, parents = array("i"), array("i"), array("i")
        for query in queries:
            tree = -1
            if query.parents is not None:
                tree = len(parents)
                parents.extend(query.parents)
            records.extend((len(blocks), query.start, query.stored, query.length, tree))
            blocks.extend(query.blocks[: -(-query.end // self._block_size)])
        return records, blocks, parents


def _longs(tokens: Sequence[int] | Tensor) -> Ints:
    return array("q", tokens.tolist() if isinstance(tokens, Tensor) else tokens)


def _address(numbers: Ints) -> int:
    return numbers.buffer_info()[0]


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
