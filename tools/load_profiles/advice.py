"""What the figures say: where speculation stops paying, and the config.pbtxt lines that follow."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from tools.load_profiles.points import Point
from tools.load_profiles.profile import Load

PAYS = 1.03
"""Times plain decoding's tokens a second from which on speculation pays: less is noise."""
NEARLY_ALL = 0.95
"""Share of the highest throughput that is as good as it."""
NOISY = 0.15
"""From how large a difference between repeats on they are remarked upon."""
HIGH, LOW = 0.8, 0.4
"""Acceptance rates above and below which other draft lengths are worth a try."""


class Line(NamedTuple):
    """A parameter of config.pbtxt, and why it has this value."""

    key: str
    value: str
    why: str


def gains(points: Sequence[Point], draft_tokens: int) -> dict[float, float]:
    """By concurrency: tokens a second as a multiple of plain decoding's, in the least favourable
    repeat: one in which something else slowed plain decoding down must not recommend anything.
    Where next to nothing was drafted both are the same, and what differs is noise."""
    found: dict[float, dict[int, Point]] = {}
    for point in points:
        if point.load.kind == "concurrency" and not point.failure:
            found.setdefault(point.load.value, {})[point.draft_tokens] = point
    return {
        clients: _gain(of[draft_tokens], of[0]) if of[draft_tokens].speculates else 1.0
        for clients, of in sorted(found.items())
        if {0, draft_tokens} <= of.keys()
    }


def _gain(ours: Point, plain: Point) -> float:
    pairs = zip(ours.tokens_per_second, plain.tokens_per_second, strict=True)
    return min(own / other for own, other in pairs)


def crossover(found: dict[float, float]) -> float | None:
    """The concurrency from which on speculation no longer pays, on a logarithmic scale between two
    that were measured. None: it pays up to the highest; the lowest: nowhere."""
    clients = list(found)
    paying = [place for place, each in enumerate(clients) if found[each] >= PAYS]
    if not paying:
        return clients[0] if clients else None
    if paying[-1] == len(clients) - 1:
        return None
    last, first = clients[paying[-1]], clients[paying[-1] + 1]
    share = (found[last] - PAYS) / (found[last] - found[first])
    return float(last * (first / last) ** share)


def best_length(points: Sequence[Point]) -> int:
    """The draft length with the highest gain, as a mean over the concurrencies; 0: none pays."""
    means = {}
    for length in sorted({point.draft_tokens for point in points} - {0}):
        of = gains(points, length)
        if any(gain >= PAYS for gain in of.values()):
            means[length] = statistics.geometric_mean(of.values())
    return max(means, key=means.__getitem__, default=0)


def recommend(points: Sequence[Point], output_tokens: float, longest_wait_s: float) -> list[Line]:
    """`output_tokens`: of an answer, on average. Without measured concurrencies: no line."""
    served = [one for one in points if one.load.kind == "concurrency" and not one.failure]
    if not served:
        return []
    length = best_length(points)
    of_length = [one for one in served if one.draft_tokens == length]
    return [*_speculation(points, length), *_admission(of_length, output_tokens, longest_wait_s)]


def _speculation(points: Sequence[Point], length: int) -> list[Line]:
    if length == 0:
        why = "no draft length that was measured is faster than plain decoding"
        return [Line("speculative_method", "none", why)]
    of = gains(points, length)
    most = max(of, key=of.__getitem__)
    why = f"{of[most]:.2f} times plain decoding with {Load('concurrency', most)}"
    lines = [Line("num_speculative_tokens", str(length), why)]
    if (stops := crossover(of)) is not None:
        why = f"speculation stops paying at about {stops:.1f} requests at once"
        lines.append(Line("speculative_disable_by_batch_size", str(math.ceil(stops)), why))
    return lines


def _admission(served: Sequence[Point], output_tokens: float, longest_wait_s: float) -> list[Line]:
    """How many requests run and how many wait."""
    peak = max(one.speed for one in served)
    enough = min(one.load.value for one in served if one.speed >= NEARLY_ALL * peak)
    lines = []
    if enough < max(one.load.value for one in served):
        why = f"{enough:g} at once reach {NEARLY_ALL:.0%} of the most, {peak:.0f} tokens/s"
        lines.append(Line("max_num_seqs", f"{enough:g}", why))
    waiting = max(1, math.floor(longest_wait_s * peak / output_tokens))
    why = f"so many begin within {longest_wait_s:g} s at {peak / output_tokens:.1f} requests/s"
    return [*lines, Line("max_queue_size", str(waiting), why)]


def remarks(points: Sequence[Point]) -> list[str]:
    """What the lines cannot say."""
    found = _of_drafts(points)
    spread = max((most_apart(point) for point in points if not point.failure), default=0.0)
    if spread > NOISY:
        found.append(
            f"Repeats of a point differ by up to {spread:.0%}: on a quiet machine, or with more "
            "requests and repeats, the lines above would be firmer."
        )
    if any(point.preemptions for point in points):
        found.append(
            "Requests were preempted: the KV cache was full. Raise kv_cache_memory; plain decoding "
            "with speculative_method none has more room, for it keeps no KV of a draft."
        )
    return found


def _of_drafts(points: Sequence[Point]) -> list[str]:
    """How many of them are accepted, where that calls for something."""
    length = best_length(points) or max(point.draft_tokens for point in points)
    longest = max(point.draft_tokens for point in points)
    of_length = [one for one in points if one.draft_tokens == length]
    drafted = sum(one.drafted for one in of_length)
    rate = sum(one.accepted for one in of_length) / max(1, drafted)
    if not drafted:
        return ["The server drafted nothing: it has no speculative_method, or expected no gain."]
    if rate > HIGH and length == longest:
        return [
            f"{rate:.0%} of the drafted tokens are accepted: measure longer drafts too "
            "(draft_tokens here, num_speculative_tokens of the server)."
        ]
    if rate < LOW:
        return [
            f"Only {rate:.0%} of the drafted tokens are accepted: measure shorter drafts, another "
            "draft model or another method."
        ]
    return []


def most_apart(point: Point) -> float:
    """By how much the fastest repeat exceeds the slowest, as a share of it."""
    return max(point.tokens_per_second) / min(point.tokens_per_second) - 1
