"""The native engine: schedule, draft, verify, commit.

Served, it has a process of its own (service.py); `in_process` completes prompts in the caller's.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from tandem.assembly import build
from tandem.batch import TargetBatch, computed_rows, target_batch
from tandem.config import EngineConfig
from tandem.cpu.host_code import HostCode
from tandem.drafting import Verdict, Verified
from tandem.errors import InvalidRequestError
from tandem.metrics import DRAFTING, KV_USAGE, ROUNDS, RUNNING, VERIFYING, WAITING, Key, Report
from tandem.models.decoder import Passed
from tandem.output import OutputStream, Streams, gather_logprobs
from tandem.request import (
    Banned,
    Prompt,
    Request,
    RequestOutput,
    SamplingParams,
    SpeculationStats,
    TokenLogprobs,
)
from tandem.scheduler import StepPlan
from tandem.verification.verify import verify

NO_PASS = Passed(torch.empty(0), None)
"""Nobody asks for logits where a round was one launch."""


class EngineStats(NamedTuple):
    """A snapshot for metrics and health."""

    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    preemptions: int


class NativeEngine:
    """Speculative generation for one target, over as many requests as fit."""

    def __init__(self, config: EngineConfig) -> None:
        parts = build(config)
        self.config = config
        self.limits = parts.limits
        self.tokenizer = parts.tokenizer
        self.world = parts.world
        self.target = parts.target
        self.blocks = parts.blocks
        self.scheduler = parts.scheduler
        self.meters = parts.meters
        self.proposer = parts.proposer
        self.sampler = parts.sampler
        self.as_blocks = config.acceptance_method == "block"
        self.shares_processor = self.target.device.type == "cpu"
        self.host_code = HostCode()
        self.steps = 0
        self.streams = Streams()
        self._ids = itertools.count()

    # -- requests ------------------------------------------------------------------------------

    def add_request(
        self, prompt: Prompt, params: SamplingParams, request_id: str | None = None
    ) -> str:
        """Queues a prompt; the request's id. Raises `InvalidRequestError` or `QueueFullError`."""
        request = self.prepare(prompt, params, request_id or f"request-{next(self._ids)}")
        self.add(request)
        return request.id

    def prepare(
        self, prompt: Prompt, params: SamplingParams, request_id: str, arrival: float | None = None
    ) -> Request:
        """A request, checked and tokenized. arrival: by `time.monotonic`; None: now. Called from
        any thread. Raises `InvalidRequestError`."""
        tokens = self.tokenizer.prompt(prompt, self.limits.max_model_len)
        request = self.limits.request(request_id, tokens, params, arrival)
        request.seed = self._coupling_seed(params)
        request.banned = Banned([ids for word in params.bad_words for ids in self._spellings(word)])
        return request

    def add(self, request: Request) -> None:
        """Queues what was prepared. Raises `InvalidRequestError` or `QueueFullError`."""
        if request.id in self.streams:
            raise InvalidRequestError(f"The request id {request.id!r} is in use: choose another.")
        self.scheduler.add(request)
        self.streams[request.id] = OutputStream(request, self.tokenizer, self.meters)

    def abort(self, request_id: str) -> RequestOutput | None:
        """Drops a request at once, freeing its KV; None if it is not (or no longer) here."""
        stream = self.streams.pop(request_id, None)
        if stream is None:
            return None
        self.scheduler.remove(stream.request)
        return stream.abort()

    @property
    def idle(self) -> bool:
        return self.scheduler.idle

    def wake(self) -> None:
        """A `step` under way computes, and will end."""

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """`on_lost` is called with the reason, from another thread, should a rank be lost."""
        if self.world is not None:
            self.world.on_lost = on_lost

    def _coupling_seed(self, params: SamplingParams) -> int | None:
        if params.greedy or params.seed is not None:
            return params.seed
        return secrets.randbits(63) if self.config.acceptance_method == "coupled" else None

    def _spellings(self, word: str) -> list[list[int]]:
        """A banned word inside a text and at its start, as tokens that can be written."""
        spelled = [self.tokenizer.encode_plain(text) for text in (word, " " + word)]
        return [ids for ids in spelled if ids and max(ids) < self.limits.vocab_size]

    # -- the loop ------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """One round: every decoding request gains at least one token."""
        if self.steps >= self.host_code.due and self.target.by_kernels is not None:
            self.host_code.turn(self.steps, self.target.by_kernels)
        if torch.is_inference_mode_enabled():  # beginning it anew takes as long as scheduling
            return self._round()
        with torch.inference_mode():
            return self._round()

    def _round(self) -> list[RequestOutput]:
        keeps_states = self.proposer.keeps_states(*self.scheduler.load)
        plan = self.scheduler.schedule(self.proposer.may_draft, keeps_states)
        begun = time.perf_counter()
        draft = self.proposer.propose(plan.decodes, alone=not plan.prefills)
        drafting = time.perf_counter() - begun
        batch = target_batch(plan, draft)
        passed, verified = self._verify(batch, self.proposer.taps_of(plan), drafting)
        self._tell_times(batch, verified)
        verdicts = verified.verdicts
        outputs = self._commit(plan, batch, passed.logits, verdicts)
        if passed.features is not None:
            self.proposer.absorb(computed_rows(plan, batch, verdicts), passed.features)
        for request in batch.requests:
            self._settle(request)
        self.steps += 1
        return outputs

    def _verify(
        self, batch: TargetBatch, taps: Sequence[int] | None, drafting: float
    ) -> tuple[Passed, Verified]:
        """By a pass of the target, where the draft is not verified already. taps: as in `Proposer`;
        drafting: seconds."""
        if batch.draft.verified is not None:
            return NO_PASS, batch.draft.verified
        begun = time.perf_counter()
        meanwhile = self.proposer.meanwhile
        passed = self.target.forward(batch.tokens, batch.queries, batch.rows, taps, meanwhile)
        verdicts = verify(passed, batch.requests, batch.draft, self.sampler, self.as_blocks)
        return passed, Verified(verdicts, drafting, time.perf_counter() - begun)

    def _tell_times(self, batch: TargetBatch, verified: Verified) -> None:
        if any(batch.draft.tokens):
            self.meters.observe(DRAFTING, verified.drafting)
        self.proposer.passed(len(batch.tokens), verified.verifying)
        if batch.requests:
            self.meters.observe(VERIFYING, verified.verifying)

    def _commit(
        self, plan: StepPlan, batch: TargetBatch, logits: torch.Tensor, verdicts: list[Verdict]
    ) -> list[RequestOutput]:
        """Moves lengths, tells the proposer, appends tokens, frees what has finished."""
        draft = batch.draft
        if draft.parents:
            self._compact(plan, verdicts)
        for chunk in plan.prefills:
            chunk.request.computed += chunk.length
            self.blocks.register(chunk.request)
        self.proposer.observe(plan.decodes, draft, verdicts)
        for place, ((request, _), verdict) in enumerate(zip(plan.decodes, verdicts, strict=False)):
            self._count(request, len(draft.tokens[place]), draft.depth(place), verdict)
        self.meters.count(ROUNDS, len(plan.decodes))
        outputs: list[RequestOutput] = []
        first = 0
        for request, tokens, verdict in zip(batch.requests, draft.tokens, verdicts, strict=True):
            found: list[TokenLogprobs] = []
            if request.params.logprobs is not None:
                rows = [first, *(first + node for node in verdict.path)]
                found = self._logprobs(request, verdict, logits[rows])
            outputs.append(self.streams[request.id].append(verdict, found))
            first += len(tokens) + 1
        return outputs

    def _count(self, request: Request, drafted: int, depth: int, verdict: Verdict) -> None:
        """A decoding request's KV now covers its last token and the accepted path."""
        request.computed += 1 + len(verdict.path)
        if drafted:
            self.meters.round(drafted, len(verdict.path), depth)
            request.stats = request.stats.plus(SpeculationStats(drafted, len(verdict.path), 1))

    def _compact(self, plan: StepPlan, verdicts: list[Verdict]) -> None:
        """Moves the KV of accepted tree nodes right behind the committed text."""
        source: list[int] = []
        target: list[int] = []
        for (request, _), verdict in zip(plan.decodes, verdicts, strict=False):
            for offset, node in enumerate(verdict.path, 1):
                if node != offset:
                    source.append(self._slot(request, request.computed + node))
                    target.append(self._slot(request, request.computed + offset))
        if source:
            self.target.move(source, target)

    def _slot(self, request: Request, position: int) -> int:
        block, offset = divmod(position, self.config.block_size)
        return request.blocks[block] * self.config.block_size + offset

    def _logprobs(
        self, request: Request, verdict: Verdict, logits: torch.Tensor
    ) -> list[TokenLogprobs]:
        """logits: of the rows behind which the verdict's tokens stand."""
        count = request.params.logprobs
        assert count is not None
        return gather_logprobs(logits, verdict.tokens, count, self.tokenizer)

    def _settle(self, request: Request) -> None:
        """After its tokens are in: a finished request leaves, a running one shares its prefix."""
        length = len(request.tokens)  # a stop may have cut off accepted tokens
        request.computed = min(request.computed, length)
        self.blocks.register(request)
        if request.finish_reason is not None:
            del self.streams[request.id]
            self.scheduler.remove(request)
            self.proposer.finished(request)

    # -- how things stand ----------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """What is going on now."""
        usage = self.blocks.usage()
        return EngineStats(
            len(self.scheduler.running),
            len(self.scheduler.waiting),
            usage.used,
            usage.total,
            self.scheduler.num_preemptions,
        )

    def report(self) -> Report:
        """What was counted since the last report, and how things stand."""
        now = self.stats()
        usage = now.blocks_used / now.blocks_total
        # a request has one block table for all runners: a block is in use by each of them
        return self.meters.report(
            {Key(RUNNING): now.running, Key(WAITING): now.waiting}
            | {Key(KV_USAGE, runner): usage for runner in self.config.runners_with_kv}
        )

    def check_integrity(self) -> None:
        """Asserts that the block pool adds up, and is unused when nothing runs."""
        self.blocks.check_integrity(self.idle)

    def shutdown(self) -> None:
        """Drops all requests and ends the other ranks."""
        self.host_code.stop()
        for request_id in list(self.streams):
            self.abort(request_id)
        self.check_integrity()
        world, self.world = self.world, None
        if world is not None:
            world.close()
