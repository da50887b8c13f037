"""Lossless verification of a batch of drafts.

Three rules, chosen per request:

* match: the target draws its own token at every node; the draft is followed while it contains
  what was drawn. Exact for any draft fixed by the context, so for deterministic proposals, for
  greedy decoding and for coupled sampling.
* rejection (Leviathan et al. 2023, Chen et al. 2023): a token x drawn from q is kept with
  probability min(1, p(x) / q(x)); the first one that is not is replaced by a draw from
  max(0, p - q), normalised; after the last one the next token is drawn from p.
* block (Sun et al. 2024, arXiv 2403.10444): as rejection, but a chain is judged as a whole, so that
  a token the target likes makes up for one before it that it likes less. Never fewer tokens in
  expectation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tandem.drafting import Draft, Verdict
from tandem.models.decoder import Passed
from tandem.request import Request
from tandem.verification.sampler import Sampler, best_tokens, by_rejection
from tandem.verification.scores import Row, edited, scores


def node_rows(request: Request, tokens: Sequence[int], parents: Sequence[int] | None) -> list[Row]:
    """A row for node 0 and for each proposed token, with the path that leads to it."""
    paths: list[list[int]] = [[]]
    for index, token in enumerate(tokens):
        parent = index if parents is None else parents[index]
        paths.append([*paths[parent], token])
    return [Row(request, path) for path in paths]


def verify(
    passed: Passed,
    requests: Sequence[Request],
    draft: Draft,
    sampler: Sampler,
    as_blocks: bool = False,
) -> list[Verdict]:
    """Judges B drafts by the target's pass over their nodes, whose logits [sum of 1 + N_b, V] lie
    request after request.

    as_blocks: the third rule takes the second one's place.
    """
    if not requests:  # the step ran prefill chunks alone
        return []
    drawn, kept, rejecting = _draw(passed, requests, draft, sampler, as_blocks)
    if not any(draft.tokens):
        return [Verdict([], [token]) for token in drawn]
    verdicts: list[Verdict] = []
    first = 0
    for b, (tokens, reject) in enumerate(zip(draft.tokens, rejecting, strict=True)):
        if not tokens:
            verdicts.append(Verdict([], [drawn[first]]))
            first += 1
            continue
        nodes = slice(first, first + len(tokens) + 1)
        if reject:
            verdicts.append(walk_kept(tokens, kept[nodes], drawn[nodes]))
        else:
            parents = draft.parents[b] if draft.parents else range(len(tokens))
            verdicts.append(walk_matching(tokens, parents, drawn[nodes]))
        first = nodes.stop
    return verdicts


class _Drawn(NamedTuple):
    """What the target makes of R nodes of B requests."""

    tokens: list[int]
    """[R] its own draw at each, or what replaces the rejected one."""
    kept: Sequence[int]
    """[R] whether the token drafted behind each is kept, where it is judged by p and q."""
    rejecting: list[bool]
    """[B] whose are."""


def _draw(
    passed: Passed,
    requests: Sequence[Request],
    draft: Draft,
    sampler: Sampler,
    as_blocks: bool,
) -> _Drawn:
    if all(request.params.takes_best for request in requests):
        best = best_tokens(passed.logits) if passed.best is None else passed.best
        return _Drawn(best, [], [False] * len(requests))
    drawn_from_q = draft.drawn or [draft.q is not None] * len(requests)
    rejecting = [
        from_q and by_rejection(request)
        for from_q, request in zip(drawn_from_q, requests, strict=True)
    ]
    by_blocks = as_blocks and any(rejecting)
    if sampler.verifies_chains and draft.parents is None and not by_blocks:
        logits = passed.logits
        if any(request.params.edits_logits for request in requests):
            logits = edited(logits, _rows(requests, draft))
        found = sampler.verify(logits, requests, draft.tokens, draft.q, rejecting)
        return _Drawn(*found, rejecting)
    rows = _rows(requests, draft)
    scored = scores(passed.logits, rows)
    kept: list[bool] = []
    if any(rejecting) and sampler.kernel and not as_blocks:
        return _judged(scored, rows, draft, rejecting, sampler)
    if any(rejecting):
        judge = _judge_blocks if as_blocks else _reject
        scored, kept = judge(scored, draft, rejecting, sampler)
    return _Drawn(sampler.draw_scored(scored, rows), kept, rejecting)


def _rows(requests: Sequence[Request], draft: Draft) -> list[Row]:
    """Of all nodes."""
    return [
        row
        for b, (request, tokens) in enumerate(zip(requests, draft.tokens, strict=True))
        for row in node_rows(request, tokens, draft.parents[b] if draft.parents else None)
    ]


def _judged(
    scored: Tensor,
    rows: Sequence[Row],
    draft: Draft,
    rejecting: list[bool],
    sampler: Sampler,
) -> _Drawn:
    """`_reject` and the draws in one launch, read back at once."""
    assert draft.q is not None
    steps = draft.q.shape[1]
    drafted = {row: (token, b * steps + step) for row, b, step, token in _drafted(draft, rejecting)}
    judged = sampler.judge(scored, rows, draft.q, drafted)
    tokens, kept = torch.stack([judged.tokens, judged.kept.long()]).tolist()
    return _Drawn(tokens, [bool(one) for one in kept], rejecting)


def walk_matching(tokens: Sequence[int], parents: Sequence[int], drawn: list[int]) -> Verdict:
    """Follows the target's own draws through the tree as far as it goes."""
    path: list[int] = []
    out: list[int] = []
    node = 0
    for index, token in enumerate(tokens):  # children follow their parents
        if parents[index] == node and token == drawn[node]:
            node = index + 1
            path.append(node)
            out.append(token)
    return Verdict(path, [*out, drawn[node]])


def walk_kept(tokens: Sequence[int], kept: Sequence[int], drawn: list[int]) -> Verdict:
    """Takes a chain up to its first rejected token and puts the redrawn one in its place."""
    count = next((i for i in range(len(tokens)) if not kept[i]), len(tokens))
    return Verdict(list(range(1, count + 1)), [*tokens[:count], drawn[count]])


def _reject(
    scored: Tensor, draft: Draft, rejecting: Sequence[bool], sampler: Sampler
) -> tuple[Tensor, list[bool]]:
    """Accepts or rejects every chain token under rule two, all at once.

    Returns scores in which a rejected place holds the log of max(0, p - q), and for each row
    whether the token drafted there is kept (False where nothing was).
    """
    rows, p, q, px, qx = _drafted_places(scored, draft, rejecting)
    kept = torch.zeros(scored.shape[0], dtype=torch.bool, device=scored.device)
    if len(rows):
        kept[rows] = sampler.uniform(len(rows)) * qx < px
        scored = scored.index_copy(0, rows, residual(p, q).log_())
    return scored, kept.tolist()


class _Places(NamedTuple):
    """The P drafted tokens of all chains that are judged by p and q."""

    rows: Tensor
    """[P] the row of scores that predicts each."""
    p: Tensor
    """[P, V]"""
    q: Tensor
    """[P, V]"""
    px: Tensor
    """[P] of the drafted token."""
    qx: Tensor


def _drafted_places(scored: Tensor, draft: Draft, rejecting: Sequence[bool]) -> _Places:
    assert draft.q is not None
    flat = torch.tensor(_drafted(draft, rejecting), dtype=torch.int64, device=scored.device).view(
        -1, 4
    )
    rows, owners, steps, tokens_at = flat.unbind(1)
    p, q = scored[rows].softmax(-1), draft.q[owners, steps]
    px, qx = (x.gather(1, tokens_at[:, None])[:, 0] for x in (p, q))
    # Where all that a draft can say was forbidden, q is no distribution: nothing was drawn from it.
    return _Places(rows, p, q.nan_to_num_(0.0), px, qx.nan_to_num_(torch.inf))


def _drafted(draft: Draft, rejecting: Sequence[bool]) -> list[tuple[int, int, int, int]]:
    """Row, request, step and token of all that is judged by p and q."""
    places: list[tuple[int, int, int, int]] = []
    row = 0
    for b, tokens in enumerate(draft.tokens):
        if rejecting[b]:
            places += [(row + i, b, i, token) for i, token in enumerate(tokens)]
        row += len(tokens) + 1
    return places


def _judge_blocks(
    scored: Tensor, draft: Draft, rejecting: Sequence[bool], sampler: Sampler
) -> tuple[Tensor, list[bool]]:
    """As `_reject`, under rule three.

    With w_0 = 1 and w_i = min(1, w_(i-1) p(x_i) / q(x_i)), the first i tokens are kept for the
    largest i whose own draw falls below h_i: w_i at the chain's end, and before it S / (S + 1 -
    w_i), where S is the sum of max(0, w_i p - q) over the next token, which then is drawn from it.
    """
    rows, p, q, px, qx = _drafted_places(scored, draft, rejecting)
    kept = torch.zeros(scored.shape[0], dtype=torch.bool, device=scored.device)
    if not len(rows):
        return scored, kept.tolist()
    lengths = [
        len(tokens) for tokens, judged in zip(draft.tokens, rejecting, strict=True) if judged
    ]
    weights = _block_weights((px / qx).tolist(), lengths)
    before = torch.tensor([w for chain in weights for w in chain[:-1]], device=p.device)
    left = (before[:, None] * p - q).clamp_min_(0)
    sums, draws = left.sum(-1).tolist(), sampler.uniform(len(rows)).tolist()
    first = 0
    for length, chain in zip(lengths, weights, strict=True):
        end = first + length
        count = _block_length(chain, sums[first:end], draws[first:end])
        kept[rows[first : first + count]] = True
        first = end
    return scored.index_copy(0, rows, _or_else(left, p).log_()), kept.tolist()


def _block_weights(ratios: Sequence[float], lengths: Sequence[int]) -> list[list[float]]:
    """w_0 to w_length of each chain."""
    weights: list[list[float]] = []
    first = 0
    for length in lengths:
        chain = [1.0]
        for ratio in ratios[first : first + length]:
            chain.append(min(1.0, chain[-1] * ratio))
        weights.append(chain)
        first += length
    return weights


def _block_length(weights: Sequence[float], sums: Sequence[float], draws: Sequence[float]) -> int:
    """How many tokens of one chain are kept. sums: S behind each of its beginnings."""
    length = len(draws)
    for count in range(length, 0, -1):
        if count == length:
            chance = weights[count]
        else:
            rest = sums[count] + 1 - weights[count]
            chance = sums[count] / rest if rest > 0 else 0.0
        if draws[count - 1] < chance:
            return count
    return 0


def residual(p: Tensor, q: Tensor) -> Tensor:
    """max(0, p - q) [R, V], what a rejected token is replaced from (not normalised)."""
    return _or_else((p - q).clamp_min_(0), p)


def _or_else(left: Tensor, p: Tensor) -> Tensor:
    """Rounding can leave nothing although a token was rejected: then p and q are the same."""
    return torch.where(left.amax(-1, keepdim=True) > 0, left, p)
