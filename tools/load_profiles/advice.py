"""What the figures say: where speculation stops paying, and the config.pbtxt lines that follow."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from tools.load_profiles.points import Point
from tools.load_profiles.profile import UNITS, Kind, Load
from tools.load_profiles.target import Drafting

PAYS = 1.03
"""Times plain decoding's tokens a second from which on speculation pays: less is noise."""
NEARLY_ALL = 0.95
"""Share of the highest throughput that is as good as it."""
NOISY = 0.15
"""From how large a difference between repeats on they are remarked upon."""
FAILED = 0.0
"""Gain where plain decoding serves a load and drafts do not."""
HIGH, LOW = 0.8, 0.4
"""Acceptance rates above and below which other draft lengths are worth a try."""


class Line(NamedTuple):
    """A parameter of config.pbtxt, and why it has this value."""

    key: str
    value: str
    why: str


def gains(
    points: Sequence[Point], draft_tokens: int, kind: Kind = "concurrency"
) -> dict[float, float]:
    """By the loads of a kind: how many times as fast as plain decoding, in the least favourable
    repeat: one in which something else slowed plain decoding down must not recommend anything.
    Where next to nothing was drafted both are the same, and what differs is noise."""
    found: dict[float, dict[int, Point]] = {}
    for point in points:
        if point.load.kind == kind:
            found.setdefault(point.load.value, {})[point.draft_tokens] = point
    return {
        value: _gain(of[draft_tokens], of[0])
        for value, of in sorted(found.items())
        if {0, draft_tokens} <= of.keys() and not of[0].failure
    }


def _gain(ours: Point, plain: Point) -> float:
    """Clients that wait for their answers get more tokens a second. At a rate the tokens are as
    many as are asked for, however they are decoded: there requests end sooner."""
    if ours.failure:
        return FAILED
    if not ours.speculates:
        return 1.0
    if ours.load.kind == "request_rate":
        pairs = zip(plain.request_s, ours.request_s, strict=True)
    else:
        pairs = zip(ours.tokens_per_second, plain.tokens_per_second, strict=True)
    return min(one / other for one, other in pairs)


def crossover(found: dict[float, float]) -> float | None:
    """The load from which on speculation no longer pays, on a logarithmic scale between two that
    were measured. None: it pays up to the highest; the lowest: nowhere."""
    loads = list(found)
    paying = [place for place, each in enumerate(loads) if found[each] >= PAYS]
    if not paying:
        return loads[0] if loads else None
    if paying[-1] == len(loads) - 1:
        return None
    last, first = loads[paying[-1]], loads[paying[-1] + 1]
    share = (found[last] - PAYS) / (found[last] - found[first])
    return float(last * (first / last) ** share)


def best_length(points: Sequence[Point]) -> int:
    """Of the draft lengths that serve most loads, the one with the highest gain, as a mean over
    the loads that all of these serve; 0: none pays."""
    served = {
        length: {load: gain for load, gain in found.items() if gain > FAILED}
        for length, found in _all_gains(points).items()
    }
    paying = {length: of for length, of in served.items() if max(of.values(), default=0.0) >= PAYS}
    most = max(map(len, paying.values()), default=0)
    best = {length: of for length, of in paying.items() if len(of) == most}
    common = set.intersection(*map(set, best.values())) if best else set()
    means = {
        length: statistics.geometric_mean(of[load] for load in common or of)
        for length, of in best.items()
    }
    return max(means, key=means.__getitem__, default=0)


def _all_gains(points: Sequence[Point]) -> dict[int, dict[Load, float]]:
    """By the draft length; of lengths that could be compared."""
    found = {
        length: {
            Load(kind, value): gain
            for kind in UNITS
            for value, gain in gains(points, length, kind).items()
        }
        for length in sorted({point.draft_tokens for point in points} - {0})
    }
    return {length: of for length, of in found.items() if of}


def recommend(
    points: Sequence[Point], how: Drafting, output_tokens: float, longest_wait_s: float
) -> list[Line]:
    """`output_tokens`: of an answer, on average. How many requests at once are good, rates do not
    say: without measured concurrencies there is no line of that."""
    length = best_length(points)
    at_once = [
        one
        for one in points
        if one.load.kind == "concurrency" and one.draft_tokens == length and not one.failure
    ]
    admission = _admission(at_once, output_tokens, longest_wait_s) if at_once else []
    return [*_speculation(points, how, length), *admission]


def _speculation(points: Sequence[Point], how: Drafting, length: int) -> list[Line]:
    if length == 0:
        return _without(how) if _all_gains(points) else []
    measured = [Line(*each, "as measured") for each in how.parameters.items()]
    lines = [*measured, Line("num_speculative_tokens", str(length), _highest(points, length))]
    of = gains(points, length)
    if (stops := crossover(of)) is not None and stops > 1:  # else rates alone say that it pays
        why = f"speculation stops paying at about {stops:.1f} requests at once"
        lines.append(Line("speculative_disable_by_batch_size", str(math.ceil(stops)), why))
    return lines


def _without(how: Drafting) -> list[Line]:
    why = "no draft length that was measured is faster than plain decoding"
    lines = [Line("speculative_method", "none", why)]
    return [*lines, Line("speculative_tree", "", "plain decoding has none")] if how.tree else lines


def _highest(points: Sequence[Point], length: int) -> str:
    """Its highest gain; with clients at once, if it pays there."""
    of = gains(points, length)
    most = max(of, key=of.__getitem__, default=0.0)
    if of.get(most, 0.0) >= PAYS:
        return f"{of[most]:.2f} times plain decoding with {Load('concurrency', most)}"
    of = gains(points, length, "request_rate")
    most = max(of, key=of.__getitem__)
    return f"requests end {of[most]:.2f} times as soon with {Load('request_rate', most)}"


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


def remarks(points: Sequence[Point], how: Drafting) -> list[str]:
    """What the lines cannot say."""
    found = _of_drafts(points, how) if how.most else []
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


def _of_drafts(points: Sequence[Point], how: Drafting) -> list[str]:
    """How many of them are accepted, where that calls for something. Of a tree's nodes most cannot
    be, however good they are."""
    length = best_length(points) or how.most
    of_length = [one for one in points if one.draft_tokens == length]
    drafted = sum(one.drafted for one in of_length)
    rate = sum(one.accepted for one in of_length) / max(1, drafted)
    if not drafted:
        return ["The server drafted nothing: it expected no gain, or may not draft."]
    if how.tree:
        return []
    if rate > HIGH and length == how.most:
        return [
            f"{rate:.0%} of the drafted tokens are accepted: measure longer drafts too "
            "(a larger num_speculative_tokens, TOKENS of make profile)."
        ]
    if rate < LOW:
        return [
            f"Only {rate:.0%} of the drafted tokens are accepted: measure shorter drafts "
            "(draft_tokens of the profile), another draft model or another method."
        ]
    return []


def most_apart(point: Point) -> float:
    """By how much the fastest repeat exceeds the slowest, as a share of it."""
    of = point.request_s if point.load.kind == "request_rate" else point.tokens_per_second
    return max(of) / min(of) - 1
