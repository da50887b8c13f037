"""Penalizing, truncating, drawing and judging tokens by the kernels: every row in one call."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from tandem.cpu.library import load_kernels
from tandem.cpu.structures import LIMITS, PLACE, ROW_PLAN
from tandem.request import Request, SamplingParams
from tandem.verification.judging import Judged, Penalties, RowPlan, VerifiedChain

MASK = (1 << 64) - 1
NO_TEXT = (0, 0, 0, 1.0, 0.0, 0.0)
"""TEXT where nothing is penalized."""


def has_kernels(device: torch.device) -> bool:
    return device.type == "cpu" and load_kernels() is not None


def penalties_of(request: Request) -> Penalties:
    """A prompt counts for nothing but repetition."""
    params = request.params
    prompt = request.num_prompt if params.repetition_penalty != 1 else 0
    text = request.tokens if prompt else request.output
    rates = params.repetition_penalty, params.frequency_penalty, params.presence_penalty
    return Penalties(text, prompt, *rates)


class Texts:
    """What penalties see, one text behind the other."""

    def __init__(self) -> None:
        self.tokens = array("q")
        self._known: dict[Request, tuple[int, int, int, float, float, float]] = {}

    def of(self, request: Request) -> tuple[int, int, int, float, float, float]:
        """TEXT."""
        params = request.params
        if not params.penalized:
            return NO_TEXT
        if request not in self._known:
            text, prompt, repetition, frequency, presence = penalties_of(request)
            counts = len(self.tokens), prompt, len(text)
            self._known[request] = (*counts, repetition, frequency, presence)
            self.tokens.extend(text)
        return self._known[request]


def penalize(
    logits: Tensor, requests: Sequence[Request], prefixes: Sequence[Sequence[int]]
) -> None:
    """[R, V] float32 logits, in place, each of the place behind a request's text and the tokens
    that were drafted since."""
    kernels = load_kernels()
    assert kernels is not None
    texts, drafted, places = Texts(), array("q"), bytearray()
    for request, prefix in zip(requests, prefixes, strict=True):
        places += PLACE.pack(*texts.of(request), len(drafted), len(prefix))
        drafted.extend(prefix)
    kernels.tandem_penalize(
        logits.data_ptr(),
        *logits.shape,
        bytes(places),
        texts.tokens.buffer_info()[0],
        drafted.buffer_info()[0],
        torch.get_num_threads(),
    )


def limit(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """[R, V] float32 logits to scores, by temperature, min-p, top-k and top-p."""
    kernels = load_kernels()
    assert kernels is not None
    logits = logits.contiguous()
    count, vocab = logits.shape
    limits = b"".join([LIMITS.pack(*_limits(one, vocab)) for one in params])
    scores = torch.empty_like(logits)
    threads = torch.get_num_threads()
    kernels.tandem_limit(logits.data_ptr(), count, vocab, limits, scores.data_ptr(), threads)
    return scores


def _limits(params: SamplingParams, vocab: int) -> tuple[float, float, float, int]:
    """What rules tokens out of a vocabulary of that size: LIMITS."""
    if params.greedy:
        return 1.0, 0.0, 1.0, vocab
    top_k = params.top_k if 0 < params.top_k < vocab else vocab
    return params.temperature, params.min_p, params.top_p, top_k


def verify(
    logits: Tensor, chains: Sequence[VerifiedChain], q: Tensor | None, seed: int
) -> tuple[list[int], list[int]]:
    """logits [R, V] float32, a row for each token of the chains and one behind each; q [places, V];
    seed: of this call's random numbers. [R] tokens drawn, and whether the one drafted there is kept
    where that is judged by q; of any content behind a chain's end."""
    kernels = load_kernels()
    assert kernels is not None
    logits = logits.contiguous()
    q = None if q is None else q.contiguous()
    at_q = None if q is None else q.data_ptr()
    threads = torch.get_num_threads()
    return kernels.tandem_verify(logits.data_ptr(), *logits.shape, chains, at_q, seed, threads)


def judge(scored: Tensor, q: Tensor | None, rows: Sequence[RowPlan], seed: int) -> Judged:
    """scored [R, V] float32, q [places, V]; seed: of this call's random numbers."""
    kernels = load_kernels()
    assert kernels is not None
    scored = scored.contiguous()
    q = None if q is None else q.contiguous()
    count, vocab = scored.shape
    plans = b"".join(
        [ROW_PLAN.pack(row.noise, row.token, row.q_row, row.key & MASK) for row in rows]
    )
    tokens = torch.empty(count, dtype=torch.int64)
    kept = torch.empty(count, dtype=torch.int8)
    kernels.tandem_judge(
        scored.data_ptr(),
        count,
        vocab,
        plans,
        None if q is None else q.data_ptr(),
        seed,
        tokens.data_ptr(),
        kept.data_ptr(),
        torch.get_num_threads(),
    )
    return Judged(tokens, kept)
