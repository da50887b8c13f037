"""Memory that this process may still take: the machine's, or what its container leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from tandem.control_groups import GROUPS, OWN, folders

# Limit and use of a control group: version 2's, and 1's, which has them in a tree of their own.
FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def free_memory(groups: Path = GROUPS, own: Path = OWN) -> int:
    """Bytes. Pages of files that a container's group holds count as free: they give way."""
    left = [free for folder in folders("memory", groups, own) for free in _left_by(folder)]
    return max(0, min([psutil.virtual_memory().available, *left]))


def _left_by(folder: Path) -> Iterator[int]:
    for limit, used in FILES:
        # Not there, not readable, or "max": it limits nothing.
        with suppress(OSError, ValueError):
            most = int((folder / limit).read_text())
            yield most - int((folder / used).read_text()) + _of_files(folder)


def _of_files(folder: Path) -> int:
    """Bytes of files' pages that were not used of late."""
    with suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    return 0
