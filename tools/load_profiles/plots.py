"""A report's plots: throughput, latencies and acceptance against the load."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter

from benchmarks.figures import OTHERS, OURS, plt, powers_of_two, saved
from tools.load_profiles.points import Percentiles, Point
from tools.load_profiles.profile import UNITS

COLOURS = (OURS, "#d98c3f", "#c0504d", "#c9b458")
STYLES = ("-", "--", ":")
Title = Callable[[int], str]
"""Names what a draft length stands for."""


def loads(points: Sequence[Point], crossing: float | None, title: Title, path: Path) -> Path:
    """Four panels against one kind of load; `crossing` is where speculation stops paying."""
    figure, panels = plt.subplots(2, 2, figsize=(10, 6.4), sharex=True)
    (speed, acceptance), (first, between) = panels
    _lines(speed, points, lambda one: {0: one.speed}, title)
    speed.set_title("tokens/s of all requests", loc="left")
    speed.set_ylim(bottom=0)
    _lines(acceptance, points, lambda one: {0: _percent(one.acceptance_rate)})
    acceptance.set_title("% of drafted tokens accepted", loc="left")
    acceptance.set_ylim(0, 100)
    _lines(first, points, lambda one: _milliseconds(one.ttft))
    first.set_title("time to first token, ms", loc="left")
    _logarithmic(first)
    _lines(between, points, lambda one: _milliseconds(one.itl))
    between.set_title("between tokens, ms", loc="left")
    _logarithmic(between)
    for axis in panels.flat:
        powers_of_two(axis, sorted({one.load.value for one in points}))
        axis.set_xlabel(UNITS[points[0].load.kind])
        axis.spines[["top", "right"]].set_visible(False)
    if crossing is not None:
        speed.axvline(crossing, color="#555555", lw=0.8, ls="--")
    if speed.get_legend_handles_labels()[0]:
        speed.legend(frameon=False)
    between.legend(*_percentile_legend(points), frameon=False)
    return saved(figure, path)


def _percent(share: float | None) -> float:
    """Not a number where nothing was drafted: no point is drawn."""
    return math.nan if share is None else 100 * share


def _logarithmic(axis: Any) -> None:
    """With plain numbers at the ticks."""
    axis.set_yscale("log")
    for ticks in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        ticks(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.5)))


def _milliseconds(percentiles: Percentiles) -> dict[int, float]:
    return {each: 1e3 * value for each, value in percentiles.items()}


def _lines(
    axis: Any,
    points: Sequence[Point],
    values: Callable[[Point], dict[int, float]],
    title: Title = str,
) -> None:
    """A colour for each draft length, a style for each percentile. title: for a legend."""
    lengths = sorted({one.draft_tokens for one in points})
    for length, colour in zip(lengths, (OTHERS, *COLOURS * len(lengths)), strict=False):
        of = [one for one in points if one.draft_tokens == length and not one.failure]
        if not of:
            continue
        for style, each in zip(STYLES, values(of[0]), strict=False):
            drawn = [values(one)[each] for one in of]
            label = title(length) if style == STYLES[0] else None
            xs = [one.load.value for one in of]
            axis.plot(xs, drawn, style, marker="o", ms=4, color=colour, label=label)


def _percentile_legend(points: Sequence[Point]) -> tuple[list[Any], list[str]]:
    known = next((one.itl for one in points if one.itl), {})
    shown = list(zip(STYLES, known, strict=False))
    return [Line2D([], [], color="#555555", ls=s) for s, _ in shown], [f"p{p}" for _, p in shown]
