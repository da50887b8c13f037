"""A decoder's pass by the kernels: the whole step is one call."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.attention.paged import PagedKVCache
from tandem.attention.plan import Query
from tandem.cpu.library import load_kernels
from tandem.cpu.structures import Layer, Matrix, Model, Step
from tandem.models.decoder import Decoder
from tandem.models.decoder import Layer as DecoderLayer
from tandem.models.layers import Linear, RMSNorm

Ints = NDArray[np.int32]


class KernelDecoder:
    """A whole decoder with its KV cache. Weights stay where they are: in float32 or bfloat16."""

    def __init__(self, decoder: Decoder, cache: PagedKVCache) -> None:
        kernels, config = load_kernels(), decoder.config
        assert kernels is not None
        self.config = config
        self._forward = kernels.tandem_forward
        self._space = ctypes.c_void_p(kernels.tandem_space())
        weakref.finalize(self, kernels.tandem_release, self._space)
        self._block_size = cache.block_size
        self._bfloat = int(cache.data.dtype == torch.bfloat16)
        self._kept: list[object] = [decoder, cache]
        """What the structures point to."""
        layers = (Layer * config.num_layers)()
        for index, layer in enumerate(decoder.layers):
            assert isinstance(layer, DecoderLayer)
            layers[index] = self._layer(layer, cache.data[index])
        self._model = Model(
            config.num_layers,
            config.hidden_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.intermediate_size,
            cache.block_size,
            1,
            config.norm_eps,
            layers,
            decoder.embed.weight.data_ptr(),
            self._vector(decoder.norm),
            self._table(decoder.rope.cos),
            self._table(decoder.rope.sin),
            self._matrix(decoder.head),
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

    def _matrix(self, linear: Linear) -> Matrix:
        bias = None if linear.bias is None else self._table(linear.bias)
        return Matrix(linear.weight.data_ptr(), bias, *linear.weight.shape)

    def _vector(self, norm: RMSNorm | None) -> int | None:
        return None if norm is None else self._table(norm.weight)

    def _table(self, tensor: Tensor) -> int:
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
    ) -> tuple[Tensor, Tensor | None]:
        """As `ModelRunner.forward_tapped`."""
        flat = torch.as_tensor(tokens, dtype=torch.int64).contiguous()
        picked = np.asarray(range(len(flat)) if rows is None else rows, np.int32)
        logits = torch.empty(len(picked), self.config.vocab_size)
        wanted = np.asarray(sorted(taps or ()), np.int32)
        features = None
        if taps is not None:
            features = torch.empty(len(flat), max(1, len(wanted)) * self.config.hidden_size)
        records, blocks, parents = self._queries(queries)
        step = Step(
            len(flat),
            len(queries),
            len(picked),
            len(wanted),
            flat.data_ptr(),
            records.ctypes.data,
            blocks.ctypes.data,
            parents.ctypes.data,
            picked.ctypes.data,
            wanted.ctypes.data,
            logits.data_ptr(),
            features.data_ptr() if features is not None and taps else None,
            features.data_ptr() if features is not None and not taps else None,
        )
        self._model.threads = torch.get_num_threads()
        self._forward(self._model, step, self._space, self._bfloat)
        return logits, features

    def _queries(self, queries: Sequence[Query]) -> tuple[Ints, Ints, Ints]:
        """[queries, 5] as in the kernels' `Query`, and the tables that it points into."""
        records: list[int] = []
        blocks: list[int] = []
        parents: list[int] = []
        for query in queries:
            tree = -1 if query.parents is None else len(parents)
            records += (len(blocks), query.start, query.stored, query.length, tree)
            blocks += query.blocks[: -(-query.end // self._block_size)]
            parents += query.parents or ()
        return (
            np.array(records, np.int32),
            np.array(blocks, np.int32),
            np.array(parents, np.int32),
        )
