"""Lossless verification of a batch of drafts.

Two rules, chosen per request:

* match: the target draws its own token at every node; the draft is followed while it contains
  what was drawn. Exact for any draft fixed by the context, so for deterministic proposals, for
  greedy decoding and for coupled sampling.
* rejection (Leviathan et al. 2023, Chen et al. 2023): a token x drawn from q is kept with
  probability min(1, p(x) / q(x)); the first one that is not is replaced by a draw from
  max(0, p - q), normalised; after the last one the next token is drawn from p.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem.drafting import Draft, Verdict
from tandem.request import Request
from tandem.verification.sampler import Sampler, by_rejection
from tandem.verification.scores import Row, scores


def node_rows(request: Request, tokens: Sequence[int], parents: Sequence[int] | None) -> list[Row]:
    """A row for node 0 and for each proposed token, with the path that leads to it."""
    paths: list[list[int]] = [[]]
    for index, token in enumerate(tokens):
        parent = index if parents is None else parents[index]
        paths.append([*paths[parent], token])
    return [Row(request, path) for path in paths]


def verify(
    logits: Tensor, requests: Sequence[Request], draft: Draft, sampler: Sampler
) -> list[Verdict]:
    """Judges B drafts by the target's logits [sum of 1 + N_b, V], request after request."""
    if not requests:  # the step ran prefill chunks alone
        return []
    per_request = [
        node_rows(request, tokens, draft.parents[b] if draft.parents else None)
        for b, (request, tokens) in enumerate(zip(requests, draft.tokens, strict=True))
    ]
    rows = [row for group in per_request for row in group]
    scored = scores(logits, rows)
    rejecting = [draft.q is not None and by_rejection(request) for request in requests]
    kept: list[bool] = []
    if any(rejecting):
        scored, kept = _reject(scored, draft, rejecting, sampler)
    drawn: list[int] = sampler.draw_scored(scored, rows).tolist()
    verdicts: list[Verdict] = []
    first = 0
    for b, (tokens, reject) in enumerate(zip(draft.tokens, rejecting, strict=True)):
        nodes = slice(first, first + len(tokens) + 1)
        if reject:
            verdicts.append(_walk_kept(tokens, kept[nodes], drawn[nodes]))
        else:
            parents = draft.parents[b] if draft.parents else range(len(tokens))
            verdicts.append(_walk_matching(tokens, parents, drawn[nodes]))
        first = nodes.stop
    return verdicts


def _walk_matching(tokens: Sequence[int], parents: Sequence[int], drawn: list[int]) -> Verdict:
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


def _walk_kept(tokens: Sequence[int], kept: list[bool], drawn: list[int]) -> Verdict:
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
    assert draft.q is not None
    places: list[tuple[int, int, int, int]] = []  # row, request, step, token
    row = 0
    for b, tokens in enumerate(draft.tokens):
        if rejecting[b]:
            places += [(row + i, b, i, token) for i, token in enumerate(tokens)]
        row += len(tokens) + 1
    kept = torch.zeros(scored.shape[0], dtype=torch.bool, device=scored.device)
    if places:
        rows, owners, steps, tokens_at = torch.tensor(places, device=scored.device).unbind(1)
        p = scored[rows].softmax(-1)
        q = draft.q[owners, steps]
        px = p.gather(1, tokens_at[:, None])[:, 0]
        qx = q.gather(1, tokens_at[:, None])[:, 0]
        kept[rows] = sampler.uniform(len(places)) * qx < px
        scored = scored.index_copy(0, rows, residual(p, q).log_())
    return scored, kept.tolist()


def residual(p: Tensor, q: Tensor) -> Tensor:
    """max(0, p - q) [R, V], what a rejected token is replaced from (not normalised)."""
    left = (p - q).clamp_min_(0)
    # Rounding can leave nothing although a token was rejected: then p and q are the same.
    return torch.where(left.amax(-1, keepdim=True) > 0, left, p)
