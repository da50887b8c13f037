"""Tables and machines in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column is left-aligned, the others are figures."""
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def machine_line(of: Mapping[str, Any]) -> str:
    """What `benchmarks.common.machine` says, as a sentence."""
    reads = f", reads {of['read_gb_per_s']} GB/s" if "read_gb_per_s" in of else ""
    return (
        f"{of['cpu']}, {of['threads']} threads, {of['instructions']}{reads}; "
        f"Python {of['python']}, torch {of['torch']}."
    )
