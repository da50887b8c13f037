"""Whole rounds as one CUDA graph each: the draft model's chains, the target's pass over them and
its judgement, with nothing read back in between.

A chain's keys and values lie where they belong, so that a commit moves nothing. Greedy, seeded and
random requests go together, whatever rules out their unlikely tokens; requests whose logits are
edited or shown, trees, and steps that read prompts go the other way. Each graph keeps the memory
that its logits need.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch

from tandem.drafting import Draft
from tandem.gpu.graphs import MOST_ROWS, SIZES, WITHOUT, Capture, lacks_memory, padded
from tandem.gpu.round import Bucket, Clock, DeviceClock, Round, most_blocks
from tandem.gpu.round_layout import READ
from tandem.runners.model_runner import ModelRunner
from tandem.scheduler import Decode
from tandem.verification.sampler import Sampler, by_rejection
from tandem.verification.scores import MOST_SORTED

logger = logging.getLogger("tandem")

LENGTHS = (*range(1, 9), 10, 12, 16)  # of chains: each token is a pass of the draft
PREPARED = 4  # requests up to which graphs are made before the first request comes
MOST_GRAPHS = 128  # of rounds: what each takes, some MB of a large model, is never given back


class GraphedRounds:
    """Of a target and a draft model of the same vocabulary, on the same device."""

    def __init__(
        self,
        target: ModelRunner,
        draft: ModelRunner,
        sampler: Sampler,
        capture: Capture[None],
        as_blocks: bool = False,
        clock: Callable[[], Clock] = DeviceClock,
    ) -> None:
        """as_blocks: as of `verify`; then drafts that are judged by p and q go the other way."""
        self._target, self._draft, self._sampler = target, draft, sampler
        self._capture, self._as_blocks, self._clock = capture, as_blocks, clock
        self._rounds: dict[Bucket, Round | None] = {}
        device = target.device
        self._on = torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def prepare(self, requests: int, length: int, judged: bool) -> None:
        """Makes graphs for the first few of up to so many requests, and chains of up to so many
        tokens, that are greedy or drawn; others are made when they are met. judged: drafts of those
        drawn are, by p and q."""
        for count in SIZES[: 1 + SIZES.index(padded(min(requests, PREPARED), SIZES))]:
            longest = padded(min(length, LENGTHS[-1]), LENGTHS)
            for tokens in LENGTHS[: 1 + LENGTHS.index(longest)]:
                for drawn in (False, True):
                    self._run(Bucket(count, tokens, drawn, False, drawn and judged), [])

    def __call__(self, decodes: Sequence[Decode]) -> Draft | None:
        """Drafts and verifies; None where the round has to go the other way."""
        bucket = self._bucket(decodes)
        found = bucket and self._run(bucket, decodes)
        if found is not None:
            for request, lookahead in decodes:
                if lookahead:
                    request.draft_computed = len(request.tokens)
        return found

    def _run(self, bucket: Bucket, decodes: Sequence[Decode]) -> Draft | None:
        with self._on:
            if bucket not in self._rounds:
                if len(self._rounds) == MOST_GRAPHS:
                    return None  # whose rounds are the rarest
                self._rounds[bucket] = self._made(bucket)
            found = self._rounds[bucket]
            return None if found is None else found.run(decodes, self._sampler)

    def _made(self, bucket: Bucket) -> Round | None:
        """None where there is no memory for what it reads."""
        try:
            return Round(bucket, self._target, self._draft, self._clock(), self._capture)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            logger.warning(WITHOUT)
            return None

    def _bucket(self, decodes: Sequence[Decode]) -> Bucket | None:
        longest = max(decode.lookahead for decode in decodes)
        if not 0 < longest <= LENGTHS[-1] or len(decodes) > SIZES[-1]:
            return None
        if not all(self._fits(decode) for decode in decodes):
            return None
        requests, length = padded(len(decodes), SIZES), padded(longest, LENGTHS)
        params = [decode.request.params for decode in decodes]
        truncated = any(one.truncates for one in params)
        blocks = sum(len(decode.request.blocks) for decode in decodes)
        if requests * (length + 1) > (MOST_SORTED if truncated else MOST_ROWS):
            return None
        if blocks > most_blocks(self._target):
            return None
        limited = any(not one.greedy for one in params)
        judged = any(by_rejection(decode.request) for decode in decodes)
        return Bucket(requests, length, limited, truncated, judged)

    def _fits(self, decode: Decode) -> bool:
        request, lookahead = decode
        if request.params.edits_logits or request.params.logprobs is not None:
            return False
        if self._as_blocks and by_rejection(request):
            return False
        return not lookahead or len(request.tokens) - request.draft_computed <= READ
