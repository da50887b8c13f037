"""The report of a profile: Markdown beside its plots, and the figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.markdown import machine_line, table
from tandem.serving.overrides import entry
from tools.load_profiles import plots
from tools.load_profiles.advice import Line, best_length, crossover, gains, recommend, remarks
from tools.load_profiles.points import Point
from tools.load_profiles.profile import Profile

HOW = """Measured by perf_analyzer over gRPC streams, plain and speculative by turns on the same
server; a plain request is one with `num_draft_tokens` 0. Each point was measured {repeats} times:
tokens/s is the median (and the range), percentiles are over the requests of all repeats. Tokens
that arrive together share the time since the last ones. A client sends its next request when its
answer has ended, and its first one is not counted; requests of a rate are sent whether or not
others have ended ({arrivals})."""
KINDS = {"concurrency": "By clients at once", "request_rate": "By request rate"}


def write(
    name: str, profile: Profile, points: Sequence[Point], machine: Mapping[str, Any], folder: Path
) -> Path:
    """Writes report.md, its plots and points.json; the report's path."""
    (folder / "points.json").write_text(
        json.dumps([point._asdict() for point in points], indent=1) + "\n", encoding="utf-8"
    )
    length = best_length(points) or max(profile.draft_tokens)
    crossing = crossover(gains(points, length))
    arrivals = profile.arrivals if profile.burst == 1 else f"bursts of {profile.burst}"
    how = HOW.format(repeats=profile.repeats, arrivals=arrivals)
    parts = [f"# Load profile: {name}", profile.description.strip(), machine_line(machine), how]
    parts += ["## Where speculation stops paying", verdict(points, length)]
    parts += ["## Recommended lines for config.pbtxt", *_lines(profile, points)]
    for kind, heading in KINDS.items():
        if of := [point for point in points if point.load.kind == kind]:
            path = folder / f"{kind}.svg"
            plots.loads(of, crossing if kind == "concurrency" else None, path)
            parts += [f"## {heading}", f"![{heading}]({path.name})", _table(of)]
    report = folder / "report.md"
    report.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return report


def verdict(points: Sequence[Point], length: int) -> str:
    """In a sentence, for drafts of at most `length` tokens."""
    found = gains(points, length)
    if not found:
        return "Not measured: the profile names no concurrency, or none could be served."
    crossing, least, most = crossover(found), min(found), max(found)
    ratios = ", ".join(f"{ratio:.2f} with {clients:g}" for clients, ratio in found.items())
    if crossing is None:
        where = f"Up to {most:g} clients, the most measured, it pays"
    elif crossing == least:
        where = f"It pays nowhere from {least:g} to {most:g} clients"
    else:
        where = f"It stops paying at about **{crossing:.1f} clients**"
    compared = f"Tokens/s with {length} drafted, as a multiple of plain decoding's in the least"
    idle = [f"{one.load.value:g}" for one in points if _is_idle(one, length)]
    left = f" Next to nothing was drafted with {', '.join(idle)}: what differs there is noise."
    return f"{where}. {compared} favourable repeat: {ratios}.{left if idle else ''}"


def _is_idle(point: Point, length: int) -> bool:
    """Whether drafts were allowed, and hardly any made."""
    asked = point.load.kind == "concurrency" and point.draft_tokens == length and not point.failure
    return asked and not point.speculates


def _lines(profile: Profile, points: Sequence[Point]) -> list[str]:
    mean = sum(profile.output_tokens) / 2
    lines = recommend(points, mean, profile.longest_wait_s)
    listing = "\n".join(_entry(line) for line in lines) or "# none: no concurrency was measured"
    return [f"```\n{listing}\n```", *remarks(points)]


def _entry(line: Line) -> str:
    return f"# {line.why}\n{entry(line.key, line.value).rstrip()}"


def _table(points: Sequence[Point]) -> str:
    percentiles = next((list(one.ttft) for one in points if one.ttft), [])
    columns = ["", "tokens/s", "accepted", "tokens a pass"]
    columns += [f"{what} p{each}" for what in ("TTFT", "ITL", "request") for each in percentiles]
    return table(columns, [_row(point, percentiles) for point in points])


def _row(point: Point, percentiles: Sequence[int]) -> list[str]:
    name = f"{point.load}, {plots.title(point.draft_tokens)}"
    if point.failure:
        return [f"{name}: {point.failure}", *[""] * (3 + 3 * len(percentiles))]
    rate = point.acceptance_rate
    accepted = "" if rate is None else f"{rate:.0%} of {point.drafted}"
    times = [
        f"{1e3 * of[each]:.1f} ms" if each in of else ""
        for of in (point.ttft, point.itl, point.request)
        for each in percentiles
    ]
    return [name, _speed(point), accepted, f"{point.tokens_per_pass:.2f}", *times]


def _speed(point: Point) -> str:
    least, most = min(point.tokens_per_second), max(point.tokens_per_second)
    spread = f" ({least:.0f} to {most:.0f})" if len(point.tokens_per_second) > 1 else ""
    return f"{point.speed:.0f}{spread}"
