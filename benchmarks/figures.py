"""What all plots share: colours, the axis of loads, the way into a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot as plt

__all__ = ["OTHERS", "OURS", "plt", "powers_of_two", "saved"]

plt.rcParams["svg.hashsalt"] = "tandem"  # otherwise each run has ids of its own

OURS, OTHERS = "#1a7f64", "#a9b4b0"


def powers_of_two(axis: Any, values: Sequence[float]) -> None:
    """A logarithmic axis with these ticks."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(values, [f"{value:g}" for value in values])


def saved(figure: Any, path: Path) -> Path:
    """Writes an SVG file, the same one for the same data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path
