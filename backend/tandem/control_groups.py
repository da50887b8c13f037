"""Limits of the container around this process, as Linux's control groups have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def folders(controller: str, groups: Path = GROUPS, own: Path = OWN) -> Iterator[Path]:
    """Of each of the process's groups, and of those around them: version 2's, which have all
    controllers, and version 1's of this one."""
    with suppress(OSError):
        for line in own.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                inner = groups / controllers / path.strip("/")
                for folder in (inner, *inner.parents):
                    if folder.is_relative_to(groups):
                        yield folder


def cpu_quota(groups: Path = GROUPS, own: Path = OWN) -> int | None:
    """Cores that may be kept busy all the time; None: as many as there are. More threads than that
    would be stopped together, those that others wait for too."""
    found = [cores for folder in folders("cpu", groups, own) for cores in _cores_by(folder)]
    return max(1, int(min(found))) if found else None


def _cores_by(folder: Path) -> Iterator[float]:
    # Not there, not readable, "max" or -1: it limits nothing.
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        yield int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota = (folder / "cpu.cfs_quota_us").read_text()
        if int(quota) > 0:
            yield int(quota) / int((folder / "cpu.cfs_period_us").read_text())
