"""The target's part of a step as one flat batch: drafts to verify and prefill chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tandem.attention.plan import Query
from tandem.drafting import Computed, Draft, Verdict
from tandem.request import Request
from tandem.scheduler import StepPlan


class TargetBatch(NamedTuple):
    """T tokens; R of their rows yield logits."""

    tokens: list[int]
    """[T]"""
    queries: list[Query]
    rows: list[int]
    """[R] rows whose next token is predicted: every node, and the last of a finished prefill."""
    requests: list[Request]
    """Who those rows belong to: decodes first, then requests whose prefill ends here."""
    draft: Draft
    """The draft, with an empty one for each finished prefill."""


def target_batch(plan: StepPlan, draft: Draft) -> TargetBatch:
    """Lays the step out: for each decode its last token and its draft, then the chunks."""
    tokens: list[int] = []
    queries: list[Query] = []
    rows: list[int] = []
    requests = [decode.request for decode in plan.decodes]
    for index, (request, _) in enumerate(plan.decodes):
        nodes = [request.tokens[-1], *draft.tokens[index]]
        parents = [-1, *draft.parents[index]] if draft.parents else None
        rows.extend(range(len(tokens), len(tokens) + len(nodes)))
        tokens.extend(nodes)
        queries.append(Query(request.blocks, request.computed, len(nodes), parents))
    for chunk in plan.prefills:
        request, start = chunk.request, chunk.request.computed
        tokens.extend(request.tokens[start : start + chunk.length])
        queries.append(Query(request.blocks, start, chunk.length))
        if chunk.last:
            rows.append(len(tokens) - 1)
            requests.append(request)
    undrafted = len(requests) - len(plan.decodes)
    whole = _with_undrafted(draft, undrafted) if undrafted else draft
    return TargetBatch(tokens, queries, rows, requests, whole)


def _with_undrafted(draft: Draft, count: int) -> Draft:
    """An empty draft for each of so many requests more."""
    nothing: list[list[int]] = [[] for _ in range(count)]
    return draft._replace(
        tokens=draft.tokens + nothing,
        parents=draft.parents and draft.parents + nothing,
        drawn=draft.drawn and draft.drawn + [False] * count,
    )


def computed_rows(
    plan: StepPlan, batch: TargetBatch, verdicts: Sequence[Verdict]
) -> list[Computed]:
    """After the commit: which rows of the pass are text whose next token is known."""
    found: list[Computed] = []
    first = 0
    for (request, _), tokens, verdict in zip(
        plan.decodes, batch.draft.tokens, verdicts, strict=False
    ):
        rows = [first, *(first + node for node in verdict.path)]
        start = request.computed - len(rows)
        known = len(request.tokens) - 1 - start  # an end may have cut off what was accepted
        found.append(Computed(request, start, rows[:known]))
        first += 1 + len(tokens)
    for request, length in plan.prefills:
        found.append(Computed(request, request.computed - length, range(first, first + length)))
        first += length
    return found
