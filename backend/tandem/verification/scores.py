"""The processed distribution of each row: edits by history, temperature, truncation.

The order is vLLM's: bans and biases, penalties, temperature, min-p, top-k, top-p.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tandem.cpu import sampling
from tandem.request import Request, SamplingParams

MOST_TOP_K = 1 << 24  # beyond any vocabulary, and all integers up to it are floats
MOST_SORTED = 64  # rows at once: sorting takes several times the memory of its scores, and what it
# takes within a graph is never given back


class Row(NamedTuple):
    """One place whose next token is predicted."""

    request: Request
    prefix: Sequence[int] = ()
    """Drafted tokens between the committed text and this place."""

    @property
    def position(self) -> int:
        """Index in the text of the token to come."""
        return len(self.request.tokens) + len(self.prefix)


def scores(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """[R, V] float32 logits to scores: softmax(score) is what a row is drawn from.

    Greedy rows keep temperature 1 and are not truncated: only their largest score matters.
    """
    params = [row.request.params for row in rows]
    logits = edited(logits, rows)
    if all(p.greedy for p in params):
        return logits
    if sampling.has_kernels(logits.device):
        return sampling.limit(logits, params)
    limits = torch.tensor([limits_of(p) for p in params], device=logits.device)
    return limited(logits, limits, any(p.truncates for p in params))


# -- temperature and truncation ------------------------------------------------------------------


def limits_of(params: SamplingParams) -> tuple[float, float, int, float]:
    """Temperature, min-p, top-k (0: all) and top-p."""
    if params.greedy:
        return 1.0, 0.0, 0, 1.0
    top_k = min(max(0, params.top_k), MOST_TOP_K)
    return params.temperature, params.min_p, top_k, params.top_p


def limited(logits: Tensor, limits: Tensor, truncates: bool) -> Tensor:
    """[R, V] by `limits_of` [R, 4]. truncates: whether any row does. Nothing is read back."""
    temperature, min_p, top_k, top_p = limits[:, :, None].unbind(1)
    scored = logits / temperature
    if not truncates:
        return scored
    floor = scored.amax(-1, keepdim=True) + min_p.log()
    scored = scored.masked_fill_(scored < floor, -torch.inf)
    for some in zip(*(of.split(MOST_SORTED) for of in (scored, top_k, top_p)), strict=True):
        _truncate_sorted(*some)
    return scored


def _truncate_sorted(scored: Tensor, top_k: Tensor, top_p: Tensor) -> None:
    """Keeps the k best, then of those the fewest that reach mass p (always one); in place. (Sums
    are of 64 bits: on GPUs their order is not fixed, and no token may be in or out by it.)"""
    vocab = scored.shape[-1]
    ordered, order = scored.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab, device=scored.device)
    ordered = ordered.masked_fill((rank >= top_k) & (top_k > 0), -torch.inf)
    before = ordered.softmax(-1).cumsum(-1, dtype=torch.float64).roll(1, -1)
    before[:, 0] = 0.0
    # p = 1 keeps everything, whatever rounding makes of the sum.
    ordered = ordered.masked_fill((before >= top_p) & (top_p < 1), -torch.inf)
    scored.scatter_(-1, order, ordered)


# -- edits by history --------------------------------------------------------------------------


def edited(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """[R, V] float32 logits, by what their requests forbid, favour and penalize."""
    if not any(row.request.params.edits_logits for row in rows):
        return logits
    logits = logits.clone(memory_format=torch.contiguous_format)
    for line, row in zip(logits, rows, strict=True):
        _ban_and_bias(line, row)
    _penalize(logits, rows)
    return logits


def _ban_and_bias(line: Tensor, row: Row) -> None:
    """min_tokens, bad_words and logit_bias on one row [V], in place."""
    request, params = row.request, row.request.params
    if request.num_output + len(row.prefix) < params.min_tokens and request.stop_ids:
        line[list(request.stop_ids)] = -torch.inf
    if banned := request.banned.next(request, row.prefix):
        line[banned] = -torch.inf
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), device=line.device)
        line[ids] += torch.tensor(list(params.logit_bias.values()), device=line.device)


def _penalize(logits: Tensor, rows: Sequence[Row]) -> None:
    """[R, V], in place."""
    if not any(row.request.params.penalized for row in rows):
        return
    if sampling.has_kernels(logits.device):
        requests, prefixes = zip(*rows, strict=True)
        return sampling.penalize(logits, requests, prefixes)
    _penalize_repetition(logits, rows)
    _penalize_output(logits, rows)


def _penalize_repetition(logits: Tensor, rows: Sequence[Row]) -> None:
    """Of prompt and output. In place, and only at tokens that the texts have, which are far fewer
    than a vocabulary's."""
    places: list[int] = []
    rates: list[float] = []
    for index, row in enumerate(rows):
        rate, first = row.request.params.repetition_penalty, index * logits.shape[-1]
        if rate != 1:
            tokens = {*row.request.tokens, *row.prefix}
            places += [first + token for token in tokens]
            rates += [rate] * len(tokens)
    if places:
        flat, where, by = logits.view(-1), *_tensors(logits, places, rates)
        found = flat[where]
        flat[where] = torch.where(found > 0, found / by, found * by)


def _penalize_output(logits: Tensor, rows: Sequence[Row]) -> None:
    """As often as a token is there (frequency), and once (presence). In place, as above."""
    places: list[int] = []
    frequencies: list[float] = []
    presences: list[float] = []
    for index, row in enumerate(rows):
        params, first = row.request.params, index * logits.shape[-1]
        if params.frequency_penalty or params.presence_penalty:
            counts = Counter([*row.request.output, *row.prefix])
            places += [first + token for token in counts]
            frequencies += [params.frequency_penalty * count for count in counts.values()]
            presences += [params.presence_penalty] * len(counts)
    if places:
        flat = logits.view(-1)
        where, frequency, presence = _tensors(logits, places, frequencies, presences)
        flat[where] = flat[where] - frequency - presence


def _tensors(like: Tensor, *lists: Sequence[float]) -> list[Tensor]:
    return [torch.tensor(one, device=like.device) for one in lists]
