"""Draws tokens, for the target and for drafts alike.

Requests with a seed by argmax(score + noise keyed by seed and position), others by one random
number a row: the first token up to which the row's distribution sums to it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tandem.request import Request
from tandem.verification.noise import coupled_gumbel, row_key
from tandem.verification.scores import Row, scores

if TYPE_CHECKING:
    from tandem.gpu.verification import Judged


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
    return request.seed is None and not request.params.greedy


class Sampler:
    """Draws for every row: greedy ones take the best, seeded ones by keyed noise, others freely."""

    def __init__(self, seed: int | None, device: torch.device) -> None:
        self.by_triton = device.type == "cuda"
        self._seeds = random.Random(seed)
        """Of the kernels' launches."""
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
        if self.by_triton:
            return self.judge(scored, rows).tokens.tolist()
        free = [place for place, row in enumerate(rows) if by_rejection(row.request)]
        if len(free) == len(rows):
            return self._draw_free(scored)
        tokens = best_tokens(scored + self._noise(scored, rows))
        if free:
            for place, token in zip(free, self._draw_free(scored[free]), strict=True):
                tokens[place] = token
        return tokens

    def _draw_free(self, scored: Tensor) -> list[int]:
        """[R] from the engine's generator."""
        sums = scored.softmax(-1).cumsum(-1, dtype=torch.float64)
        drawn = torch.rand(
            (len(scored), 1), generator=self.generator, dtype=sums.dtype, device=sums.device
        )
        # Above 0 and up to the last sum: what has no share is never drawn.
        places = torch.searchsorted(sums, (1 - drawn) * sums[:, -1:])
        tokens: list[int] = places[:, 0].clamp_max_(scored.shape[-1] - 1).tolist()
        return tokens

    def judge(
        self,
        scored: Tensor,
        rows: Sequence[Row],
        q: Tensor | None = None,
        drafted: Mapping[int, tuple[int, int]] = NOTHING,
    ) -> Judged:
        """Draws, and judges by rejection, in one launch on the GPU. drafted: by row the token that
        was drafted behind it, and the row of q that it was drawn from."""
        from tandem.gpu.verification import GREEDY, KEYED, RANDOM, RowPlan, judge

        plans = []
        for place, row in enumerate(rows):
            request = row.request
            kind, key = RANDOM, 0
            if request.params.greedy:
                kind = GREEDY
            elif request.seed is not None:
                kind, key = KEYED, row_key(request.seed, row.position)
            plans.append(RowPlan(kind, key, *drafted.get(place, (0, -1))))
        return judge(scored, q, plans, self._seeds.getrandbits(31))

    def uniform(self, count: int) -> Tensor:
        """[count] draws from [0, 1)."""
        return torch.rand(count, generator=self.generator, device=self.generator.device)

    def _noise(self, scored: Tensor, rows: Sequence[Row]) -> Tensor:
        """[R, V]; zeros where there is no key."""
        noise = torch.zeros_like(scored)
        keyed = [
            (i, row_key(row.request.seed, row.position))
            for i, row in enumerate(rows)
            if row.request.seed is not None and not row.request.params.greedy
        ]
        if keyed:
            indices, keys = zip(*keyed, strict=True)
            noise[list(indices)] = coupled_gumbel(keys, scored.shape[-1], scored.device)
        return noise
