"""A round as one CUDA graph: what goes in, what is launched, and what comes out.

The host copies in where rows go and how requests are drawn. On the device follow the draft's
passes, each with its draw, the target's pass over all nodes, and the judgement. Back come the
tokens that were drafted and drawn, and which of those drafted are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from tandem.attention.paged import PagedAttention
from tandem.attention.plan import Rows
from tandem.drafting import Draft, Verdict, Verified
from tandem.gpu.graphs import EVERY_TEXT, Capture
from tandem.gpu.inputs import Inputs, Part
from tandem.gpu.round_layout import READ, layout, tables_of, widths
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
    """Times a round's drafting."""

    def mark(self, place: int) -> None:
        """0: it begins, 1: its tokens are drafted."""
        ...

    def wait(self) -> float:
        """Until what it gives is on the host: seconds of drafting."""
        ...


class DeviceClock:
    """By events in the graph."""

    def __init__(self) -> None:
        self._events = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(2)]

    def mark(self, place: int) -> None:
        self._events[place].record()

    def wait(self) -> float:
        # for the graph: its events were recorded by the launch before too
        torch.cuda.current_stream().synchronize()
        begun, drafted = self._events
        return 1e-3 * begun.elapsed_time(drafted)


def most_blocks(runner: ModelRunner) -> int:
    """In a round's tables. Requests may share blocks, but seldom all of them."""
    return 4 * runner.cache.spare_slot // runner.cache.block_size


class Round:
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
        self._made = False
        device, (requests, length) = target.device, bucket[:2]
        rows, each = requests * sum(widths(length)), requests * (length + 1)
        self._inputs = Inputs(
            {
                "texts": Part(INT64, READ * requests),
                "positions": Part(INT64, rows),
                "slots": Part(INT64, rows),
                "records": Part(INT32, each * FIELDS),
                "limits": Part(FLOAT32, LIMITS * requests),
                "draws": Part(INT32, 3 * requests),
                "judgements": Part(INT32, 3 * each),
                "keys": Part(INT64, each),
                "seeds": Part(INT32, length + 1),
                "tables": Part(INT32, most_blocks(target)),
            },
            device,
        )
        on_gpu = device.type == "cuda"
        self._found = torch.zeros((3, requests, length + 1), dtype=torch.int64, pin_memory=on_gpu)
        """On the host: tokens of the nodes, tokens drawn there, and whether those drafted behind
        them are kept."""
        self._unseen = torch.zeros(1, dtype=torch.int8, device=device)
        self._attentions = self._passes()

    def run(self, decodes: Sequence[Decode], sampler: Sampler) -> Draft | None:
        """A round; None where there is no memory for its graph."""
        if not self._made:
            self._fill(decodes, sampler)
            self._replay, self._made = self._capture(self._launch), True
        if self._replay is None:
            return None
        begun = time.perf_counter()
        self._fill(decodes, sampler)
        self._replay()
        drafting = self._clock.wait()
        verifying = time.perf_counter() - begun - drafting  # as of a pass, with the host's part
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
        cache, tables = self._target.cache, tables_of(decodes)
        places = layout(decodes, tables, requests, length, cache.block_size, cache.spare_slot)
        texts = np.zeros((requests, READ), np.int64)
        keys = np.zeros((requests, length + 1), np.int64)
        limits = np.tile(np.array([1, 0, 0, 1], FLOAT32), (requests, 1))
        draws = np.tile(np.array([0, 0, -1], INT32), (requests, 1))
        judgements = np.tile(draws[:, None], (1, length + 1, 1))
        for b, (request, lookahead) in enumerate(decodes):
            last = request.tokens[-READ:]
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
                "tables": tables,
            }
        )

    # -- on the device ---------------------------------------------------------------------------

    def _launch(self) -> None:
        parts, (requests, length) = self._inputs.tensors, self._bucket[:2]
        keys, seeds = parts["keys"].view(requests, length + 1), parts["seeds"]
        attentions = self._attentions
        self._clock.mark(0)
        texts, q = parts["texts"].view(requests, READ), None
        hidden = self._pass(self._draft, parts["texts"], attentions[0])
        hidden, nodes = hidden.view(requests, READ, -1)[:, -1], [texts[:, -1]]
        for level in range(length):
            if level:
                hidden = self._pass(self._draft, nodes[-1], attentions[level])
            scored = self._scored(self._draft, hidden)
            if self._bucket.judged:
                q = scored.new_empty((requests, length, scored.shape[-1])) if q is None else q
                q[:, level] = scored.softmax(-1)
            nodes.append(self._drawn(scored, keys[:, level], seeds[level:]))
        self._clock.mark(1)
        self._judge(torch.stack(nodes, 1), attentions[length], q)

    def _drawn(self, scored: Tensor, keys: Tensor, seeds: Tensor) -> Tensor:
        """A token for each request [B]."""
        if not self._bucket.limited:
            return scored.argmax(-1)
        draws = self._inputs.tensors["draws"].view(-1, 3)
        return launch(scored, None, draws, keys, seeds).tokens

    def _judge(self, nodes: Tensor, attention: PagedAttention, q: Tensor | None) -> None:
        """nodes [B, length + 1]: of each request its last token and its draft."""
        parts, (requests, length) = self._inputs.tensors, self._bucket[:2]
        plans = parts["judgements"].view(requests, length + 1, 3)
        plans[:, :length, 1] = nodes[:, 1:]
        scored = self._scored(self._target, self._pass(self._target, nodes.reshape(-1), attention))
        if self._bucket.limited:
            rows = None if q is None else q.view(-1, q.shape[-1])
            judged = launch(scored, rows, plans.view(-1, 3), parts["keys"], parts["seeds"][length:])
            drawn, kept = judged.tokens.view_as(nodes), judged.kept.long().view_as(nodes)
        else:
            drawn, kept = scored.argmax(-1).view_as(nodes), torch.zeros_like(nodes)
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
