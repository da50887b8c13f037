"""From answers to figures: throughput, latencies, acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tools.load_profiles.perf_analyzer import Answer
from tools.load_profiles.profile import Load

Percentiles = dict[int, float]


HARDLY = 0.01
"""Drafted tokens a pass up to which there are none worth mentioning."""


class Point(NamedTuple):
    """A load with a draft length, over all its repeats."""

    load: Load
    draft_tokens: int
    """Asked for; 0: plain decoding."""
    tokens_per_second: list[float]
    """Of each repeat."""
    request_s: list[float]
    """Of each repeat: seconds from sending a request to its last token, the median request."""
    ttft: Percentiles
    """Seconds from sending a request to its first token."""
    itl: Percentiles
    """Seconds between tokens: tokens that arrive together share the time since the last ones."""
    request: Percentiles
    """Seconds from sending a request to its last token."""
    drafted: int
    accepted: int
    """Of the drafted tokens."""
    decoded: int
    """Tokens behind the first ones of their requests."""
    preemptions: int
    """Requests that lost their KV cache to others, by the server's count."""
    failure: str | None = None
    """Why it could not be measured; then there are no figures."""

    @property
    def speed(self) -> float:
        """Tokens a second, the median repeat."""
        return float(np.median(self.tokens_per_second))

    @property
    def passes(self) -> int:
        """Of the target, counted by request: those behind the first token of each."""
        return self.decoded - self.accepted

    @property
    def tokens_per_pass(self) -> float:
        """That a request gets of each."""
        return self.decoded / self.passes if self.decoded else 1.0

    @property
    def speculates(self) -> bool:
        """Whether something was drafted: without drafts a server decodes plainly."""
        return self.drafted > HARDLY * self.passes

    @property
    def acceptance_rate(self) -> float | None:
        """None: nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None


def measured(
    load: Load,
    draft_tokens: int,
    repeats: Sequence[Sequence[Answer]],
    ramp: int,
    percentiles: Sequence[int],
    preemptions: int,
) -> Point:
    """Of each repeat's answers, in the order of sending, the first `ramp` are not counted."""
    answers = [answer for repeat in repeats for answer in repeat[ramp:]]
    drafted = sum(answer.drafted for answer in answers)
    accepted = sum(answer.accepted for answer in answers)
    decoded = sum(sum(answer.tokens) - 1 for answer in answers)  # the first comes of the prefill
    return Point(
        load,
        draft_tokens,
        [throughput(repeat, ramp) for repeat in repeats],
        [float(np.median([_whole(one) for one in repeat[ramp:]])) for repeat in repeats],
        _percentiles([one.arrivals[0] - one.sent for one in answers], percentiles),
        _percentiles([gap for one in answers for gap in token_gaps(one)], percentiles),
        _percentiles([_whole(one) for one in answers], percentiles),
        drafted,
        accepted,
        decoded,
        preemptions,
    )


def failed(load: Load, draft_tokens: int, why: str) -> Point:
    return Point(load, draft_tokens, [], [], {}, {}, {}, 0, 0, 0, 0, why)


def throughput(answers: Sequence[Answer], ramp: int) -> float:
    """Tokens a second while the load is on: from the first counted request's sending to the last
    one's, of all requests that run meanwhile; to their end, if none came so soon."""
    start, end = answers[ramp].sent, answers[-1].sent
    arrivals = sorted(stamp for answer in answers for stamp in answer.arrivals if stamp > start)
    if arrivals and arrivals[0] > end:
        end = arrivals[-1]
    tokens = sum(
        count
        for answer in answers
        for stamp, count in zip(answer.arrivals, answer.tokens, strict=True)
        if start < stamp <= end
    )
    return tokens / (end - start)


def _whole(answer: Answer) -> float:
    return answer.arrivals[-1] - answer.sent


def token_gaps(answer: Answer) -> list[float]:
    """Seconds between tokens, one value for each but the first response's."""
    gaps = []
    for (before, after), count in zip(pairwise(answer.arrivals), answer.tokens[1:], strict=True):
        gaps += [(after - before) / count] * count
    return gaps


def _percentiles(values: list[float], wanted: Sequence[int]) -> Percentiles:
    if not values:  # single-token answers have no gaps
        return {}
    return {each: float(np.percentile(values, each)) for each in wanted}
