"""The report of a profile: Markdown beside its plots, and the figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.markdown import table
from tandem.serving.overrides import entry
from tools.load_profiles import plots
from tools.load_profiles.advice import (
    FAILED,
    Line,
    best_length,
    crossover,
    gains,
    recommend,
    remarks,
)
from tools.load_profiles.points import Point
from tools.load_profiles.profile import UNITS, Kind, Profile
from tools.load_profiles.target import Drafting

HOW = """{drafting}

Measured by perf_analyzer over gRPC streams, plain and speculative by turns on the same
server; a plain request is one with `num_draft_tokens` 0. Each point was measured {repeats} times:
tokens/s is the median (and the range), percentiles are over the requests of all repeats. Tokens
that arrive together share the time since the last ones. A client sends its next request when its
answer has ended, and its first one is not counted; requests of a rate are sent whether or not
others have ended ({arrivals})."""
REMEMBERED = """**Suffix decoding remembers answers**, and each of {prompts} prompts was sent
{times:.0f} times, with another first line: most answers were known. Where your requests do not come
again like this, measure with `suffix_decoding_max_cached_requests` 0, as a server of the profile's
own has it."""
FORGOTTEN = """Suffix decoding drafted from each request's own text alone
(`suffix_decoding_max_cached_requests` 0), as each of {prompts} prompts was sent {times:.0f} times.
Where your requests come again, measure with `ANSWERS=10000` too."""
HEADINGS: dict[Kind, str] = {
    "concurrency": "By clients at once",
    "request_rate": "By request rate",
}
GAINS: dict[Kind, str] = {
    "concurrency": "Tokens/s with {how}, as a multiple of plain decoding's",
    "request_rate": "How many times as soon the median request ends with {how},",
}
RATES_ALONE = """Rates say whether and how far drafts pay. How many requests at once are good
(`speculative_disable_by_batch_size`, `max_num_seqs`, `max_queue_size`) they do not: a server that
keeps up with a rate does not show what it could do. Name a `concurrency` for these lines."""


def write(
    name: str,
    profile: Profile,
    how: Drafting,
    points: Sequence[Point],
    machine: str,
    folder: Path,
) -> Path:
    """Writes report.md, its plots and points.json; the report's path. machine: what measured, as a
    sentence."""
    (folder / "points.json").write_text(
        json.dumps([point._asdict() for point in points], indent=1) + "\n", encoding="utf-8"
    )
    length = best_length(points) or how.most
    parts = [f"# Load profile: {name}", profile.description.strip(), machine]
    parts += [_method(profile, how), "## Where speculation stops paying"]
    parts += [verdict(points, how, length)]
    parts += ["## Recommended lines for config.pbtxt", *_lines(profile, how, points)]
    for kind in HEADINGS:
        if of := [point for point in points if point.load.kind == kind]:
            parts += _figures(of, kind, how, length, folder)
    report = folder / "report.md"
    report.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return report


def _figures(
    points: Sequence[Point], kind: Kind, how: Drafting, length: int, folder: Path
) -> list[str]:
    """Heading, plot and table of one kind of load."""
    heading, path = HEADINGS[kind], folder / f"{kind}.svg"
    crossing = crossover(gains(points, length, kind)) if length else None
    plots.loads(points, crossing, how.title, path)
    return [f"## {heading}", f"![{heading}]({path.name})", _table(points, how)]


def _method(profile: Profile, how: Drafting) -> str:
    """How it was measured."""
    arrivals = profile.arrivals if profile.burst == 1 else f"bursts of {profile.burst}"
    said = HOW.format(drafting=how, repeats=profile.repeats, arrivals=arrivals)
    prompts, points = len(profile.prompts()), profile.repeats * len(profile.lengths(how.most))
    times = points * sum(profile.sent(load) for load in profile.loads) / prompts
    if "suffix" not in how.method or times < 1.5:
        return said
    more = REMEMBERED if how.remembers else FORGOTTEN
    return f"{said}\n\n{more.format(prompts=prompts, times=times)}"


def verdict(points: Sequence[Point], how: Drafting, length: int) -> str:
    """A paragraph for each kind of load, for drafts of at most `length` tokens."""
    if not how.most:
        return "Nothing is compared: the model decodes plainly."
    kinds: list[Kind] = [kind for kind in UNITS if gains(points, length, kind)]
    said = "\n\n".join(_verdict(points, how, length, kind) for kind in kinds)
    return said or "Not measured: no load could be served both with and without speculation."


def _verdict(points: Sequence[Point], how: Drafting, length: int, kind: Kind) -> str:
    found, unit = gains(points, length, kind), UNITS[kind]
    crossing, least, most = crossover(found), min(found), max(found)
    ratios = ", ".join(
        f"{ratio:.2f} with {load:g}" if ratio > FAILED else f"none with {load:g}, which failed"
        for load, ratio in found.items()
    )
    if crossing is None:
        where = f"With {most:g} {unit}, the most measured, it still pays"
    elif crossing == least:
        where = f"It pays nowhere from {least:g} to {most:g} {unit}"
    else:
        where = f"It stops paying at about **{crossing:.1f} {unit}**"
    compared = f"{GAINS[kind].format(how=how.title(length))} in the least favourable repeat"
    idle = [one for one in points if one.draft_tokens == length and _is_idle(one, kind)]
    loads = ", ".join(f"{one.load.value:g}" for one in idle)
    left = f" Next to nothing was drafted with {loads}: what differs there is noise."
    return f"{where}. {compared}: {ratios}.{left if idle else ''}"


def _is_idle(point: Point, kind: Kind) -> bool:
    """Whether drafts were allowed, and hardly any made."""
    return point.load.kind == kind and not point.failure and not point.speculates


def _lines(profile: Profile, how: Drafting, points: Sequence[Point]) -> list[str]:
    mean = sum(profile.output_tokens) / 2
    lines = recommend(points, how, mean, profile.longest_wait_s)
    listing = "\n".join(_entry(line) for line in lines) or "# none: nothing could be compared"
    missing = [] if profile.concurrency else [RATES_ALONE]
    return [f"```\n{listing}\n```", *missing, *remarks(points, how)]


def _entry(line: Line) -> str:
    return f"# {line.why}\n{entry(line.key, line.value).rstrip()}"


def _table(points: Sequence[Point], how: Drafting) -> str:
    percentiles = next((list(one.ttft) for one in points if one.ttft), [])
    columns = ["", "tokens/s", "accepted", "tokens a pass"]
    columns += [f"{what} p{each}" for what in ("TTFT", "ITL", "request") for each in percentiles]
    return table(columns, [_row(point, how, percentiles) for point in points])


def _row(point: Point, how: Drafting, percentiles: Sequence[int]) -> list[str]:
    name = f"{point.load}, {how.title(point.draft_tokens)}"
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
