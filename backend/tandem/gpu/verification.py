"""Drawing and judging tokens in Triton: every row in one launch, nothing is read back in between.

A program takes one row. Where a drafted token is judged by rejection, the row is read once for its
softmax and once more for max(0, p - q); everywhere the token is the argmax of score + Gumbel noise,
and the noise is made where it is needed: keyed as in `verification.noise`, or by Philox.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from tandem.verification.judging import KEYED, RANDOM, Judged, RowPlan
from tandem.verification.noise import FIRST, GOLDEN, SECOND, UNIT, signed

TILE, WARPS = 2048, 8  # a program's: it goes through its row one tile after the other
HALF_A_STEP = 2.0**-32
"""Of tl.rand, which may be zero: less would make the noise as large as nothing drawn could be."""


def judge(scored: Tensor, q: Tensor | None, rows: Sequence[RowPlan], seed: int) -> Judged:
    """scored [R, V] float32, q [places, V]; seed: of this launch's random numbers."""
    keys = torch.tensor([signed(row.key) for row in rows])
    plans = torch.tensor([(row.noise, row.token, row.q_row) for row in rows], dtype=torch.int32)
    seeds = torch.tensor([seed], dtype=torch.int32)
    told = [one.to(scored.device, non_blocking=True) for one in (plans, keys, seeds)]
    return launch(scored, q, *told)


def launch(scored: Tensor, q: Tensor | None, plans: Tensor, keys: Tensor, seeds: Tensor) -> Judged:
    """As `judge`, of what is on the device: plans [R, 3] int32 as `RowPlan` without keys, keys [R],
    seeds int32, of which the first counts."""
    count, vocab = scored.shape
    tokens = torch.empty(count, dtype=torch.int64, device=scored.device)
    kept = torch.empty(count, dtype=torch.int8, device=scored.device)
    with torch.cuda.device_of(scored):  # Triton launches on the current one
        _judge[(count,)](
            scored.contiguous(),
            scored if q is None else q.contiguous(),
            plans.contiguous(),
            keys.contiguous(),
            tokens,
            kept,
            seeds,
            vocab,
            TILE=TILE,
            KEYED=KEYED,
            RANDOM=RANDOM,
            GOLDEN=signed(GOLDEN),
            FIRST=signed(FIRST),
            SECOND=signed(SECOND),
            UNIT=UNIT,
            HALF_A_STEP=HALF_A_STEP,
            num_warps=WARPS,
        )
    return Judged(tokens, kept)


@triton.jit(do_not_specialize_on_alignment=["seeds"])
def _judge(
    scored,
    q,
    plans,
    keys,
    tokens,
    kept,
    seeds,
    vocab,
    TILE: tl.constexpr,
    KEYED: tl.constexpr,
    RANDOM: tl.constexpr,
    GOLDEN: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    UNIT: tl.constexpr,
    HALF_A_STEP: tl.constexpr,
):
    seed = tl.load(seeds)
    row = tl.program_id(0)
    kind, token = tl.load(plans + 3 * row), tl.load(plans + 3 * row + 1)
    q_row = tl.load(plans + 3 * row + 2)
    line = scored + row.to(tl.int64) * vocab
    own_q = q + tl.maximum(q_row, 0).to(tl.int64) * vocab
    key = tl.load(keys + row)
    lanes = tl.arange(0, TILE)

    # the logarithm of the sum that makes scores probabilities
    highest = tl.full((), -float("inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    if q_row >= 0:
        for first in range(0, vocab, TILE):
            scores = tl.load(line + first + lanes, mask=first + lanes < vocab, other=-float("inf"))
            higher = tl.maximum(highest, tl.max(scores, 0))
            # where nothing was possible yet, infinity must not be subtracted from infinity
            shift = tl.where(higher == -float("inf"), 0.0, higher)
            total = total * tl.exp(highest - shift) + tl.sum(tl.exp(scores - shift), 0)
            highest = higher
    log_sum = highest + tl.log(total)

    keep = tl.zeros((), tl.int32)
    if q_row >= 0:
        p_token = tl.exp(tl.load(line + token) - log_sum)
        q_token = tl.load(own_q + token)
        # where all that a draft can say was forbidden, q is no distribution: nothing was drawn
        if q_token == q_token:
            keep = (tl.rand(seed, row) * q_token < p_token).to(tl.int32)
    tl.store(kept + row, keep.to(tl.int8))

    # the best of all tokens, and the best of those of which p leaves something over q
    best, found = tl.full((), -float("inf"), tl.float32), tl.zeros((), tl.int32)
    best_left, found_left = tl.full((), -float("inf"), tl.float32), tl.full((), -1, tl.int32)
    for first in range(0, vocab, TILE):
        at = first + lanes
        there = at < vocab
        scores = tl.load(line + at, mask=there, other=-float("inf"))
        noise = tl.zeros((TILE,), tl.float32)
        if kind == KEYED:
            bits = key + (at + 1).to(tl.int64) * GOLDEN
            bits = (bits ^ ((bits >> 30) & 0x3FFFFFFFF)) * FIRST
            bits = (bits ^ ((bits >> 27) & 0x1FFFFFFFFF)) * SECOND
            bits = bits ^ ((bits >> 31) & 0x1FFFFFFFF)
            uniform = (((bits >> 11) & 0x1FFFFFFFFFFFFF).to(tl.float64) + 0.5) * UNIT
            noise = (-tl.log(-tl.log(uniform))).to(tl.float32)
        if kind == RANDOM:
            uniform = tl.rand(seed + 1, row * vocab + at)
            # -log(1 - u), whose first terms keep what a small u has beyond the precision of 1 - u
            waited = tl.where(uniform < 1e-3, uniform + uniform * uniform / 2, -tl.log(1 - uniform))
            noise = -tl.log(tl.maximum(waited, HALF_A_STEP))
        noisy = tl.where(there, scores + noise, -float("inf"))
        top = tl.max(noisy, 0)
        if top > best:
            best = top
            found = tl.min(tl.where(noisy == top, at, vocab), 0)
        if q_row >= 0:
            chances = tl.load(own_q + at, mask=there, other=0.0)
            chances = tl.where(chances == chances, chances, 0.0)
            left = tl.exp(scores - log_sum) - chances
            positive = there & (left > 0)
            noisy = tl.where(positive, tl.log(tl.where(positive, left, 1.0)) + noise, -float("inf"))
            top = tl.max(noisy, 0)
            if top > best_left:
                best_left = top
                found_left = tl.min(tl.where(noisy == top, at, vocab), 0)
    # rounding can leave nothing although the token was rejected: then p and q are the same
    drawn = tl.where(found_left >= 0, found_left, found)
    tl.store(tokens + row, drawn.to(tl.int64))
