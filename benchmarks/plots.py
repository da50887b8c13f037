"""The report's plots, as SVG files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.adaptive import ADAPTIVE, PLAIN, TITLES, speeds, titles_of
from benchmarks.common import ROOT
from benchmarks.figures import OTHERS, OURS, plt, powers_of_two, saved

FOLDER = ROOT / "docs" / "plots"
PALETTE = ("#555555", "#c9b458", "#d98c3f", "#c0504d", "#7a3b5e", OURS)
COLOURS = dict(zip(TITLES, PALETTE, strict=True))


def compare(found: dict[str, Any]) -> Path:
    """Bars for each target: tokens a second on held-out prompts."""
    targets = found["targets"]
    heights = [len(target["heldout"]) for target in targets.values()]
    figure, axes = plt.subplots(
        len(targets),
        1,
        figsize=(8, 0.26 * sum(heights) + 1.2 * len(targets)),
        squeeze=False,
        gridspec_kw={"height_ratios": heights},
    )
    for (axis,), (name, target) in zip(axes, targets.items(), strict=True):
        titles = list(target["heldout"])[::-1]
        values = [target["heldout"][title]["tokens_per_second"] for title in titles]
        colours = [OURS if title.startswith("Tandem") else OTHERS for title in titles]
        bars = axis.barh(titles, values, color=colours)
        axis.bar_label(bars, [f"{value:.0f}" for value in values], padding=3)
        axis.set_title(f"{name}: tokens/s, one request, held-out prompts", loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    return saved(figure, FOLDER / "compare.svg")


def adaptive(found: dict[str, Any], name: str) -> Path:
    """Tokens a second by requests at once, as a multiple of plain decoding. name: of the file."""
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True)
    for axis, case in zip(axes, ("easy", "mixed", "hopeless"), strict=True):
        counts = [int(count) for count in found[case]]
        for title in titles_of(found[case]):
            ratios = [speeds(of)[title] / speeds(of)[PLAIN] for of in found[case].values()]
            wide = 2.6 if title == ADAPTIVE else 1.4
            axis.plot(counts, ratios, marker="o", color=COLOURS[title], label=title, lw=wide, ms=4)
        powers_of_two(axis, counts)
        axis.set_title(case, loc="left")
        axis.set_xlabel("requests at once")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("tokens/s by plain decoding's")
    axes[0].legend(frameon=False)
    return saved(figure, FOLDER / f"{name}.svg")
