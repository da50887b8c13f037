"""Draws tokens, for the target and for drafts alike, by argmax(score + Gumbel noise)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tandem.cpu import sampling
from tandem.request import Request
from tandem.verification.judging import (
    GREEDY,
    KEYED,
    RANDOM,
    ChainDraw,
    Draws,
    Gate,
    Judge,
    Judged,
    RowPlan,
    VerifiedChain,
)
from tandem.verification.noise import coupled_gumbel, random_gumbel, row_key
from tandem.verification.scores import Row, limits_of, scores

NOTHING: Mapping[int, tuple[int, int]] = {}


class Drawn(NamedTuple):
    """One token a row, and what it was drawn from."""

    tokens: list[int]
    """[R]"""
    scores: Tensor
    """[R, V] float32; softmax of a row is its distribution."""


def best_tokens(scored: Tensor) -> list[int]:
    """[R, V] to the first of each row's largest, [R]."""
    if scored.device.type == "cpu":  # where torch takes ten times as long as numpy
        found: list[int] = scored.numpy().argmax(-1).tolist()
        return found
    return scored.argmax(-1).tolist()


def by_rejection(request: Request) -> bool:
    """Whether the request's tokens come from the engine's generator: drafts for it need q."""
    return noise_of(request) == RANDOM


def noise_of(request: Request) -> int:
    """GREEDY, KEYED or RANDOM."""
    if request.params.greedy:
        return GREEDY
    return RANDOM if request.seed is None else KEYED


def _noise(request: Request, position: int) -> tuple[int, int]:
    """The kind, and its key."""
    kind = noise_of(request)
    if kind == KEYED and request.seed is not None:
        return kind, row_key(request.seed, position)
    return kind, 0


def kernel_for(device: torch.device) -> Judge | None:
    """What draws and judges on the device; None where torch does."""
    if device.type == "cuda":
        from tandem.gpu import verification  # which needs triton

        return verification.judge
    return sampling.judge if sampling.has_kernels(device) else None


class Sampler:
    """Noise for every row: none for greedy ones, keyed by seed and position for seeded ones."""

    def __init__(self, seed: int | None, device: torch.device) -> None:
        self.kernel = kernel_for(device)
        """None: torch draws and judges."""
        self._seeds = random.Random(seed)
        """Of the kernel's launches."""
        self.generator = torch.Generator(device)
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)

    def draw(self, logits: Tensor, rows: Sequence[Row]) -> Drawn:
        """Draws from processed [R, V] logits."""
        scored = scores(logits, rows)
        return Drawn(self.draw_scored(scored, rows), scored)

    def draw_scored(self, scored: Tensor, rows: Sequence[Row]) -> list[int]:
        """Draws from [R, V] scores; [R] tokens."""
        if all(row.request.params.greedy for row in rows):
            return best_tokens(scored)
        if self.kernel:
            return self.judge(scored, rows).tokens.tolist()
        return best_tokens(scored + self._noise(scored, rows))

    def judge(
        self,
        scored: Tensor,
        rows: Sequence[Row],
        q: Tensor | None = None,
        drafted: Mapping[int, tuple[int, int]] = NOTHING,
    ) -> Judged:
        """Draws, and judges by rejection, by the kernel in one launch. drafted: by row the token
        that was drafted behind it, and the row of q that it was drawn from."""
        assert self.kernel is not None
        plans = [
            RowPlan(*_noise(row.request, row.position), *drafted.get(place, (0, -1)))
            for place, row in enumerate(rows)
        ]
        return self.kernel(scored, q, plans, self._seeds.getrandbits(31))

    @property
    def verifies_chains(self) -> bool:
        """Whether `verify` may be asked: on CPU cores, by the kernels."""
        return self.kernel is sampling.judge

    def verify(
        self,
        logits: Tensor,
        requests: Sequence[Request],
        tokens: Sequence[Sequence[int]],
        q: Tensor | None,
        rejecting: Sequence[bool],
    ) -> tuple[list[int], list[int]]:
        """As `cpu.sampling.verify`, of a chain of each request. logits: edited already; rejecting:
        whose tokens are judged by q [B, N, V]."""
        steps = 0 if q is None else q.shape[1]
        chains: list[VerifiedChain] = []
        for b, (request, own, reject) in enumerate(zip(requests, tokens, rejecting, strict=True)):
            kind = noise_of(request)
            limits = () if kind == GREEDY else limits_of(request.params)
            keys = self.keys(request, len(own) + 1) if kind == KEYED else ()
            chains.append(VerifiedChain(kind, limits, keys, own, b * steps if reject else -1))
        return sampling.verify(logits, chains, q, self._seeds.getrandbits(31))

    def draws(
        self,
        requests: Sequence[Request],
        lengths: Sequence[int],
        q: Tensor | None,
        places: Sequence[int],
        gate: Gate | None = None,
    ) -> Draws:
        """How chains of these lengths are drawn, where nothing is banned. places: their first
        dimension's in q [.., longest, V], which is for requests that are verified by rejection."""
        longest, chains = max(lengths), []
        for request, length, place in zip(requests, lengths, places, strict=True):
            kind = noise_of(request)
            keys = self.keys(request, length) if kind == KEYED else ()
            q_row = place * longest if kind == RANDOM else -1
            params = request.params
            chains.append(
                ChainDraw(
                    request,
                    kind,
                    length,
                    keys,
                    q_row,
                    () if kind == GREEDY else limits_of(params),
                    sampling.penalties_of(request) if params.penalized else (),
                    tuple(params.logit_bias.items()),
                )
            )
        return Draws(chains, self._seeds.getrandbits(31), q, gate)

    @staticmethod
    def keys(request: Request, count: int) -> list[int]:
        """Of the noise of the next so many tokens; none unless it is KEYED."""
        if noise_of(request) != KEYED or request.seed is None:
            return []
        position = len(request.tokens)
        return [row_key(request.seed, position + i) for i in range(count)]

    def seeds(self, count: int) -> list[int]:
        """Of so many launches, 31 bits each."""
        return [self._seeds.getrandbits(31) for _ in range(count)]

    def uniform(self, count: int) -> Tensor:
        """[count] draws from [0, 1)."""
        return torch.rand(count, generator=self.generator, device=self.generator.device)

    def _noise(self, scored: Tensor, rows: Sequence[Row]) -> Tensor:
        noise = torch.zeros_like(scored)
        sampled = [(i, row) for i, row in enumerate(rows) if not row.request.params.greedy]
        free = [i for i, row in sampled if row.request.seed is None]
        keyed = [
            (i, row_key(row.request.seed, row.position))
            for i, row in sampled
            if row.request.seed is not None
        ]
        if free:
            noise[free] = random_gumbel(len(free), scored.shape[-1], self.generator)
        if keyed:
            indices, keys = zip(*keyed, strict=True)
            noise[list(indices)] = coupled_gumbel(keys, scored.shape[-1], scored.device)
        return noise
