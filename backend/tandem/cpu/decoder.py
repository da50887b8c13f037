"""A pass by the kernels: the whole step is one call."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from struct import pack

import torch
from torch import Tensor, nn

from tandem.attention.paged import PagedKVCache
from tandem.attention.plan import Query
from tandem.cpu.library import load_kernels
from tandem.cpu.linear import KernelLinear
from tandem.cpu.structures import STRETCH, Entry, Layer, Matrix, Model
from tandem.cpu.told import Chaining, Reading, States, Wanted
from tandem.models.decoder import Layer as DecoderLayer
from tandem.models.decoder import Passed, Stack
from tandem.models.feature_head import FeatureHead
from tandem.models.layers import Linear, RMSNorm
from tandem.verification.judging import Draws


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
        self._move = kernels.tandem_move
        self._want = kernels.tandem_want
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
        matrices = [self._model.head, self._model.entry.fuse, self._model.entry.project]
        for one in layers:
            matrices += one.qkv, one.out, one.gate_up, one.down
        formats = {matrix.bfloat for matrix in matrices if matrix.weight}
        assert len(formats) == 1  # what all of them take is written in one
        self._at = ctypes.addressof(self._model)
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
        meanwhile: Callable[[], object] | None = None,
    ) -> Passed:
        """As `ModelRunner.forward`; states: for a draft head; picks_hidden: of hidden states behind
        the last layer, those of `rows` alone are wanted, [R, hidden]. The logits are overwritten by
        the next pass. meanwhile: must run no kernels itself."""
        flat: Sequence[int] = tokens.tolist() if isinstance(tokens, Tensor) else tokens
        read = Reading(flat, queries, range(len(flat)) if rows is None else rows)
        logits = self._room.rows(len(read.rows))
        features: Tensor | None = None
        wanted: Wanted | tuple[()] = ()
        if taps is None:
            assert states is None  # a draft head gives hidden states, too
        else:
            given = None if states is None else self._checked(states, len(flat))
            features, wanted = self._wanted(taps, read, picks_hidden, given)
        best = self._forward(self._at, read, wanted, self._room.address, self._space, meanwhile)
        return Passed(logits, features, best)

    def want(self, stretches: Sequence[tuple[int, int]]) -> None:
        """Has each forward pass fetch these at its end: addresses, and how many bytes. Nothing need
        be there any more."""
        self._want(self._space, b"".join([STRETCH.pack(*one) for one in stretches]), len(stretches))

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """As `PagedKVCache.move`."""
        count = len(source)
        self._move(self._model, pack(f"{2 * count}i", *source, *target), count)

    def _wanted(
        self, taps: Sequence[int], read: Reading, picks_hidden: bool, given: States | None
    ) -> tuple[Tensor, Wanted]:
        """Room for hidden states, as in `Passed`; given: those that a draft head takes."""
        layers, rows = sorted(taps), len(read.rows if picks_hidden else read.tokens)
        assert not picks_hidden or layers in ([], [self._model.layers])
        features = torch.empty(rows, max(1, len(layers)) * self.config.hidden_size)
        at = features.data_ptr()
        tapped, normed = (at, 0) if layers else (0, at)
        states = (0, False) if given is None else (given.hidden.data_ptr(), given.fused)
        return features, Wanted(layers, tapped, normed, picks_hidden, *states)

    def _checked(self, states: States, rows: int) -> States:
        """As the kernels take them."""
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

        first: logits [B, V] of the first tokens, or what is read before, to be drawn behind its
        rows; queries: of the tokens that are fed; vocab: V, the target's; states [B, hidden] for a
        draft head; ids [own vocabulary]: what its tokens are to the target.
        """
        read: Reading | tuple[()] = ()
        if isinstance(first, Reading):
            read = first
            self._room.rows(len(queries))  # for its logits
            logits = self._room.address
        else:
            first = first.contiguous()
            logits = first.data_ptr()
        states = None if states is None else states.float().contiguous()
        gate = draws.gate
        about = Chaining(
            vocab,
            logits,
            pointer(states),
            pointer(ids),
            pointer(draws.q),
            draws.seed,
            gate.least if gate else 0.0,
            gate.kept.buffer_info()[0] if gate else 0,
        )
        return self._chains(self._at, read, queries, draws.chains, about, self._space)


def pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
