"""Whole rounds as one CUDA graph each: the draft model's chains, the target's pass over them and
its judgement, with nothing read back in between.

Before a round the host copies in where its rows go and how its requests are drawn; behind it the
host reads which tokens were drafted, drawn and kept. A chain's keys and values lie where they
belong, so that a commit moves nothing. Greedy, seeded and random requests go together, whatever
rules out their unlikely tokens; requests whose logits are edited or shown, trees, and steps that
read prompts go the other way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from tandem.attention.paged import PagedAttention
from tandem.attention.plan import Rows
from tandem.drafting import Draft, Verdict, Verified
from tandem.gpu.graphs import EVERY_TEXT, MOST_ROWS, SIZES, Capture, padded
from tandem.gpu.inputs import Inputs, Part
from tandem.gpu.round_layout import layout, tables_of, widths
from tandem.gpu.tree_attention import (
    FIELDS,
    Batch,
    KernelAttention,
    programs_of,
    splits,
    tile_rows,
)
from tandem.gpu.verification import launch
from tandem.request import Request
from tandem.runners.model_runner import ModelRunner
from tandem.scheduler import Decode
from tandem.verification.judging import RANDOM
from tandem.verification.noise import signed
from tandem.verification.sampler import Sampler, by_rejection, noise_of
from tandem.verification.scores import limited, limits_of
from tandem.verification.verify import walk_kept, walk_matching

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)  # of chains
PREPARED = 8  # requests up to which graphs are made before the first request comes
LIMITS = 4  # numbers of a request, as `limits_of` orders them
INT64, INT32, FLOAT32 = np.dtype(np.int64), np.dtype(np.int32), np.dtype(np.float32)


class Bucket(NamedTuple):
    """Rounds that are one graph."""

    requests: int
    length: int
    """Of the chains."""
    limited: bool = False
    """There are temperatures, ..."""
    truncated: bool = False
    """... tokens that are ruled out, ..."""
    judged: bool = False
    """... or drafts that are judged by p and q."""


class Clock(Protocol):
    """Times the two parts of a round."""

    def mark(self, place: int) -> None:
        """0: it begins, 1: its tokens are drafted, 2: it has ended."""
        ...

    def wait(self) -> tuple[float, float]:
        """For its end: seconds of drafting and of verifying."""
        ...


class DeviceClock:
    """By events in the graph."""

    def __init__(self) -> None:
        self._events = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(3)]

    def mark(self, place: int) -> None:
        self._events[place].record()

    def wait(self) -> tuple[float, float]:
        begun, drafted, ended = self._events
        ended.synchronize()
        return 1e-3 * begun.elapsed_time(drafted), 1e-3 * drafted.elapsed_time(ended)


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
        self._rounds: dict[Bucket, _Round] = {}

    def prepare(self, requests: int, length: int) -> None:
        """Makes graphs for up to so many requests, and chains of up to so many tokens."""
        for count in (size for size in SIZES if size <= min(requests, PREPARED)):
            for tokens in (one for one in LENGTHS if one <= min(length, LENGTHS[-1])):
                for drawn in (False, True):
                    bucket = Bucket(count, tokens, drawn, False, drawn and not self._as_blocks)
                    if count * (tokens + 1) <= MOST_ROWS:
                        self._of(bucket).run([], self._sampler)

    def __call__(self, decodes: Sequence[Decode]) -> Draft | None:
        """Drafts and verifies; None where the round has to go the other way."""
        bucket = self._bucket(decodes)
        if bucket is None:
            return None
        found = self._of(bucket).run(decodes, self._sampler)
        for request, lookahead in decodes:
            if lookahead:
                request.draft_computed = len(request.tokens)
        return found

    def _of(self, bucket: Bucket) -> _Round:
        if bucket not in self._rounds:
            clock = self._clock()
            self._rounds[bucket] = _Round(bucket, self._target, self._draft, clock, self._capture)
        return self._rounds[bucket]

    def _bucket(self, decodes: Sequence[Decode]) -> Bucket | None:
        longest = max(decode.lookahead for decode in decodes)
        if not 0 < longest <= LENGTHS[-1] or len(decodes) > SIZES[-1]:
            return None
        if not all(self._goes(decode) for decode in decodes):
            return None
        requests, length = padded(len(decodes), SIZES), padded(longest, LENGTHS)
        blocks = sum(len(decode.request.blocks) for decode in decodes)
        cache = self._target.cache
        if requests * (length + 1) > MOST_ROWS or blocks > cache.spare_slot // cache.block_size:
            return None
        params = [decode.request.params for decode in decodes]
        return Bucket(
            requests,
            length,
            any(not one.greedy for one in params),
            any(one.truncates for one in params),
            any(by_rejection(decode.request) for decode in decodes),
        )

    def _goes(self, decode: Decode) -> bool:
        request, lookahead = decode
        if request.params.edits_logits or request.params.logprobs is not None:
            return False
        if self._as_blocks and by_rejection(request):
            return False
        return not lookahead or len(request.tokens) - request.draft_computed <= 2


class _Round:
    """One bucket's."""

    def __init__(
        self,
        bucket: Bucket,
        target: ModelRunner,
        draft: ModelRunner,
        clock: Clock,
        capture: Capture[None],
    ) -> None:
        self._bucket, self._target, self._draft, self._clock = bucket, target, draft, clock
        self._capture = capture
        self._replay: Callable[[], None] | None = None
        device, (requests, length) = target.device, bucket[:2]
        rows, each = requests * sum(widths(length)), requests * (length + 1)
        cache = target.cache
        self._inputs = Inputs(
            {
                "texts": Part(INT64, 2 * requests),
                "positions": Part(INT64, rows),
                "slots": Part(INT64, rows),
                "records": Part(INT32, each * FIELDS),
                "limits": Part(FLOAT32, LIMITS * requests),
                "draws": Part(INT32, 3 * requests),
                "judgements": Part(INT32, 3 * each),
                "keys": Part(INT64, each),
                "seeds": Part(INT32, length + 1),
                "tables": Part(INT32, cache.spare_slot // cache.block_size),
            },
            device,
        )
        on_gpu = device.type == "cuda"
        self._found = torch.zeros((3, requests, length + 1), dtype=torch.int64, pin_memory=on_gpu)
        """On the host: tokens of the nodes, tokens drawn there, and whether those drafted behind
        them are kept."""
        self._unseen = torch.zeros(1, dtype=torch.int8, device=device)
        self._attentions = self._passes()

    def run(self, decodes: Sequence[Decode], sampler: Sampler) -> Draft:
        """A round."""
        self._fill(decodes, sampler)
        if self._replay is None:
            self._replay = self._capture(self._launch)
        self._replay()
        drafting, verifying = self._clock.wait()
        nodes, drawn, kept = self._found.tolist()
        tokens = [nodes[b][1 : 1 + decode.lookahead] for b, decode in enumerate(decodes)]
        verdicts = [
            _verdict(decode.request, *one)
            for decode, *one in zip(decodes, tokens, drawn, kept, strict=False)
        ]
        return Draft(tokens, verified=Verified(verdicts, drafting, verifying))

    # -- on the host -----------------------------------------------------------------------------

    def _fill(self, decodes: Sequence[Decode], sampler: Sampler) -> None:
        requests, length = self._bucket[:2]
        cache = self._target.cache
        places = layout(decodes, requests, length, cache.block_size, cache.spare_slot)
        texts, keys = np.zeros((requests, 2), np.int64), np.zeros((requests, length + 1), np.int64)
        limits = np.tile(np.array([1, 0, 0, 1], FLOAT32), (requests, 1))
        draws = np.tile(np.array([0, 0, -1], INT32), (requests, 1))
        judgements = np.tile(draws[:, None], (1, length + 1, 1))
        for b, (request, lookahead) in enumerate(decodes):
            last = request.tokens[-2:]
            texts[b, -len(last) :] = last
            limits[b] = limits_of(request.params)
            draws[b, 0] = judgements[b, :, 0] = kind = noise_of(request)
            if kind == RANDOM:
                judgements[b, :lookahead, 2] = b * length + np.arange(lookahead)
            own = [signed(key) for key in sampler.keys(request, lookahead + 1)]
            keys[b, : len(own)] = own
        self._inputs.copy(
            {
                "texts": texts,
                "positions": places.positions,
                "slots": places.slots,
                "records": places.records,
                "limits": limits,
                "draws": draws,
                "judgements": judgements,
                "keys": keys,
                "seeds": sampler.seeds(length + 1),
                "tables": tables_of(decodes),
            }
        )

    # -- on the device ---------------------------------------------------------------------------

    def _launch(self) -> None:
        parts, (requests, length) = self._inputs.tensors, self._bucket[:2]
        keys, seeds = parts["keys"].view(requests, length + 1), parts["seeds"]
        attentions = self._attentions
        self._clock.mark(0)
        rows = parts["texts"]
        hidden = self._pass(self._draft, rows, attentions[0]).view(requests, 2, -1)[:, 1]
        nodes, q = [rows.view(requests, 2)[:, 1]], None
        for level in range(length):
            if level:
                hidden = self._pass(self._draft, nodes[-1], attentions[level])
            scored = self._scored(self._draft, hidden)
            if self._bucket.judged:
                q = scored.new_empty((requests, length, scored.shape[-1])) if q is None else q
                q[:, level] = scored.softmax(-1)
            draws = parts["draws"].view(requests, 3)
            nodes.append(launch(scored, None, draws, keys[:, level], seeds[level:]).tokens)
        self._clock.mark(1)
        self._judge(torch.stack(nodes, 1), attentions[length], q)
        self._clock.mark(2)

    def _judge(self, nodes: Tensor, attention: PagedAttention, q: Tensor | None) -> None:
        """nodes [B, length + 1]: of each request its last token and its draft."""
        parts, (requests, length) = self._inputs.tensors, self._bucket[:2]
        plans = parts["judgements"].view(requests, length + 1, 3)
        plans[:, :length, 1] = nodes[:, 1:]
        scored = self._scored(self._target, self._pass(self._target, nodes.reshape(-1), attention))
        rows = None if q is None else q.view(-1, q.shape[-1])
        judged = launch(scored, rows, plans.view(-1, 3), parts["keys"], parts["seeds"][length:])
        drawn, kept = judged.tokens.view_as(nodes), judged.kept.long().view_as(nodes)
        self._found.copy_(torch.stack([nodes, drawn, kept]), non_blocking=True)

    @staticmethod
    def _pass(runner: ModelRunner, tokens: Tensor, attention: PagedAttention) -> Tensor:
        return runner.by_layers(tokens, attention, None)[0]

    def _scored(self, runner: ModelRunner, hidden: Tensor) -> Tensor:
        """Scores [rows, V] of hidden states, as many rows for each request."""
        logits = runner.model.logits(hidden)
        if not self._bucket.limited:
            return logits
        limits = self._inputs.tensors["limits"].view(-1, LIMITS)
        each = len(logits) // len(limits)
        return limited(logits, limits.repeat_interleave(each, 0), self._bucket.truncated)

    def _passes(self) -> list[PagedAttention]:
        """Attention of each pass."""
        parts, (requests, length) = self._inputs.tensors, self._bucket[:2]
        records = parts["records"].view(length + 1, -1)
        found, first = [], 0
        for index, width in enumerate(widths(length)):
            runner = self._target if index == length else self._draft
            rows = slice(first, first + requests * width)
            where = Rows(parts["positions"][rows], parts["slots"][rows])
            attend = KernelAttention(
                self._batch(runner, records[index], width), runner.cache.block_size
            )
            found.append(PagedAttention(runner.cache, where, attend))
            first = rows.stop
        return found

    def _batch(self, runner: ModelRunner, records: Tensor, width: int) -> Batch:
        """Of queries of up to `width` rows."""
        shared, requests = runner.cache.heads_per_kv, self._bucket.requests
        rows = tile_rows(width * shared)
        each = -(-width * shared // rows)
        places = [(query, tile) for query in range(requests) for tile in range(each)]
        tiles = torch.tensor(places, dtype=torch.int32).to(records.device)
        programs = programs_of(runner.cache.config, records.device)
        shares = splits(programs, len(places), EVERY_TEXT)
        return Batch(records, self._inputs.tensors["tables"], self._unseen, tiles, rows, shares)


def _verdict(request: Request, tokens: list[int], drawn: list[int], kept: list[bool]) -> Verdict:
    if by_rejection(request):
        return walk_kept(tokens, kept, drawn)
    return walk_matching(tokens, range(len(tokens)), drawn)
