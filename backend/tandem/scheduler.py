"""Continuous batching: who takes part in the next step, with how many tokens.

In the order of priority, and of equals first come, first served. Decoding requests come first,
each with one token and its lookahead slots; prefill chunks fill the rest of the token budget. When
blocks run out, the last in that order is preempted: it loses its KV and goes back to its place in
the queue with all its tokens. Nobody who runs is preempted for somebody who waits.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Sequence
from typing import NamedTuple

from tandem.config import EngineConfig
from tandem.errors import queue_full
from tandem.kv_cache import BlockManager
from tandem.metrics import PREEMPTIONS, PREFIX_HITS, PREFIX_QUERIES, QUEUED, Meters
from tandem.request import Request


class Decode(NamedTuple):
    """A request that decodes in this step."""

    request: Request
    lookahead: int
    """Most tokens that may be drafted; their slots are reserved."""


class Prefill(NamedTuple):
    """A chunk of a request's tokens to compute."""

    request: Request
    length: int

    @property
    def last(self) -> bool:
        """The chunk reaches the end of the text: it yields a token."""
        return self.request.computed + self.length == len(self.request.tokens)


class StepPlan(NamedTuple):
    """What one step runs."""

    decodes: list[Decode]
    prefills: list[Prefill]

    def requests(self) -> list[Request]:
        """Of which tokens are computed."""
        return [request for request, _ in (*self.decodes, *self.prefills)]


class Scheduler:
    """Queues and the policy over them."""

    def __init__(
        self, config: EngineConfig, blocks: BlockManager, meters: Meters, draft_reach: int
    ) -> None:
        """draft_reach: tokens of a request beyond which nothing is drafted."""
        self.config = config
        self.blocks = blocks
        self.meters = meters
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        """Both in the order in which requests are served (`_rank`)."""
        self.num_preemptions = 0
        self._longest = config.lookahead  # which takes long to find
        self._draft_reach = draft_reach
        self._steps = 0

    def add(self, request: Request) -> None:
        """Queues a request. Raises `QueueFullError`."""
        if len(self.waiting) >= self.config.max_queue_size:
            raise queue_full(len(self.waiting))
        insort(self.waiting, request, key=_rank)

    def remove(self, request: Request) -> None:
        """Takes a finished or aborted request out and frees its blocks."""
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self.blocks.release(request)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def load(self) -> tuple[int, int]:
        """Requests that run, and that wait, as far as there is room."""
        running = len(self.running)
        return running, min(len(self.waiting), self.config.max_num_seqs - running)

    def schedule(self, may_draft: bool = True, keeps_states: bool = True) -> StepPlan:
        """Chooses the next step's work and reserves its slots. may_draft, keeps_states: as in
        `Proposer`; where no states are kept, prefixes are adopted that no head has read."""
        budget = self.config.max_num_batched_tokens
        ready: list[Request] = []
        reading: list[Request] = []
        for request in self.running:
            (ready if request.decoding else reading).append(request)
        decodes, budget = self._schedule_decodes(ready, budget, bool(reading), may_draft)
        prefills: list[Prefill] = []
        if reading:  # (behind a pass each function that is called takes microseconds)
            prefills, budget = self._continue_prefills(reading, budget)
        if self.waiting:
            prefills += self._admit(budget, keeps_states)
        return StepPlan(decodes, prefills)

    def _schedule_decodes(
        self, ready: list[Request], budget: int, others_read: bool, may_draft: bool
    ) -> tuple[list[Decode], int]:
        """One token for every decoding request; what budget and blocks leave over is lookahead."""
        for request in ready:
            if request.blocks:  # not preempted for an earlier one
                self._preempt_until_fits(request)
        ready = [request for request in ready if request.blocks]
        budget -= len(ready)
        if not (may_draft and self._speculates()):
            return [Decode(request, 0) for request in ready], budget
        room = len(self.running) < self.config.max_num_seqs
        prefill_due = others_read or (self.waiting and room)
        drafts = budget - budget // 2 if prefill_due else budget  # arrivals must not starve
        lookaheads = self._lookaheads(ready, drafts)
        decodes = [Decode(*one) for one in zip(ready, lookaheads, strict=True)]
        return decodes, budget - sum(lookaheads)

    def _speculates(self) -> bool:
        """Whether anything may be drafted in this step."""
        limit = self.config.speculative_disable_by_batch_size
        return self._longest > 0 and (limit is None or len(self.running) < limit)

    def _lookaheads(self, ready: Sequence[Request], drafts: int) -> list[int]:
        """Reserves slots for drafts, at most so many in all; how many, of each request."""
        limit = self.config.speculative_token_budget
        drafts = drafts if limit is None else min(drafts, limit)
        wanted = [self._wanted_lookahead(request) for request in ready]
        if self._is_there_for_all(wanted, drafts):
            for request, lookahead in zip(ready, wanted, strict=True):
                self.blocks.reserve(request, len(request.tokens) + lookahead)
            return wanted
        lookaheads = [0] * len(ready)
        for left, place in zip(range(len(ready), 0, -1), self._order(wanted), strict=True):
            request, share = ready[place], -(-drafts // left)
            lookahead = min(wanted[place], share)
            if lookahead and self.blocks.reserve(request, len(request.tokens) + lookahead):
                lookaheads[place] = lookahead
                drafts -= lookahead
        return lookaheads

    def _is_there_for_all(self, wanted: Sequence[int], drafts: int) -> bool:
        """Whether nobody's lookahead takes another's."""
        whole = sum(wanted)
        # each has its own token's slot, so a block more than whole ones is enough
        most_blocks = whole // self.config.block_size + len(wanted)
        return whole <= drafts and most_blocks <= self.blocks.available()

    def _order(self, wanted: Sequence[int]) -> list[int]:
        """Who asks for lookahead first: who wants least, and leaves the others more; of equals
        another one in every step, for not all may get some."""
        self._steps += 1
        count = len(wanted)
        places = [(self._steps + place) % count for place in range(count)]
        return sorted(places, key=wanted.__getitem__)

    def _wanted_lookahead(self, request: Request) -> int:
        """How many drafted tokens could still be of use to the request."""
        own = request.params.most_drafted
        wanted = self._longest if own is None else min(own, self._longest)
        end = min(request.max_total - 1, self._draft_reach)
        return max(0, min(wanted, end - len(request.tokens)))

    def _continue_prefills(
        self, reading: Sequence[Request], budget: int
    ) -> tuple[list[Prefill], int]:
        """Next chunks of admitted requests, whose slots were all reserved at admission."""
        prefills: list[Prefill] = []
        for request in reading:
            if budget == 0 or not request.blocks:  # or preempted for one that decodes
                continue
            length = min(len(request.tokens) - request.computed, budget)
            prefills.append(Prefill(request, length))
            budget -= length
        return prefills, budget

    def _admit(self, budget: int, keeps_states: bool) -> list[Prefill]:
        prefills: list[Prefill] = []
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            self.blocks.adopt_prefix(request, keeps_states)
            length = min(len(request.tokens) - request.computed, budget)
            # Room for the whole text: a request that cannot finish its prefill is not begun.
            if not self.blocks.reserve(request, len(request.tokens)):
                self.blocks.release(request)
                break
            insort(self.running, self.waiting.pop(0), key=_rank)
            self._count_admission(request)
            prefills.append(Prefill(request, length))
            budget -= length
        return prefills

    def _count_admission(self, request: Request) -> None:
        if request.admitted is not None:  # it comes back after a preemption
            return
        request.admitted = time.monotonic()
        self.meters.observe(QUEUED, request.admitted - request.arrival)
        if self.blocks.prefix_caching:
            self.meters.count(PREFIX_QUERIES, len(request.tokens))
            self.meters.count(PREFIX_HITS, request.computed)

    def _preempt_until_fits(self, request: Request) -> None:
        """Frees blocks, last in order first, until `request` has its slot or is out itself."""
        while not self.blocks.reserve(request, len(request.tokens)):
            victim = self.running.pop()
            self.blocks.release(victim)
            victim.preemptions += 1
            self.num_preemptions += 1
            self.meters.count(PREEMPTIONS)
            insort(self.waiting, victim, key=_rank)
            if victim is request:
                return


def _rank(request: Request) -> tuple[int, float]:
    """The least is served first."""
    return request.params.priority, request.arrival
