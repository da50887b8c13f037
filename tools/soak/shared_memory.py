"""What a server has in /dev/shm and leaves there, told from what others have."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from tandem.serving.processes import members

SHM = Path("/dev/shm")
SERVERS = re.compile(r"tandem-[0-9a-f]{12}")  # Triton's entries begin with their server's identity
PATIENCE_S = 10.0  # for what others make and remove, and for what is on its way out
LOOK_S = 0.25


class SharedMemory:
    """Made before a server starts: what is there already is not the server's.

    What has come since is, unless it has another server's name or processes of others were seen to
    hold it.
    """

    def __init__(self) -> None:
        self._before = set(_entries())
        self._foreign: set[Path] = set()
        """What others were seen to hold: theirs too while nobody does."""

    def entries(self, identity: str) -> set[Path]:
        """Those of the server with this identity, whatever its models named them."""
        new = {path for path in set(_entries()) - self._before if not _others(path, identity)}
        unnamed = {path for path in new if not path.name.startswith(identity)} - self._foreign
        if unnamed:
            pids = set(psutil.pids())  # before our own are told: one that starts now is in neither
            self._foreign |= _held(unnamed, pids - {one.pid for one in members(identity)})
        self._foreign &= new  # names may come again
        return new - self._foreign

    def left(self, identity: str) -> set[Path]:
        """Those that stay, of a server whose models or processes have ended."""
        end, found = time.monotonic() + PATIENCE_S, self.entries(identity)
        while found and time.monotonic() < end:
            time.sleep(LOOK_S)
            found &= self.entries(identity)
        return found


def size(path: Path) -> int:
    """Bytes of an entry, a file or a folder of them; 0 if it has just gone."""
    try:
        files = [path] if path.is_file() else [*path.iterdir()]
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0


def _entries() -> Iterable[Path]:
    return SHM.iterdir()


def _others(path: Path, identity: str) -> bool:
    """Whether it is named after another server."""
    return bool(SERVERS.match(path.name)) and not path.name.startswith(identity)


def _held(paths: set[Path], pids: set[int]) -> set[Path]:
    """Of these entries, those that these processes have mapped or open."""
    held: set[str | int] = set()
    for pid in pids:
        held |= _seen(pid)
    return {path for path in paths if path.name in held or _inode(path) in held}


def _seen(pid: int) -> set[str | int]:
    """Names and inodes of what a process holds. (Of another user's process none can be seen.)

    A semaphore's file is mapped under a name that it had before: there its inode tells.
    """
    process, held = Path("/proc", str(pid)), set[str | int]()
    with suppress(OSError):
        for file in (process / "fd").iterdir():  # first: what is open may be mapped and closed
            with suppress(OSError):
                if name := _entry(os.readlink(file)):
                    held |= {name, file.stat().st_ino}
        for line in (process / "maps").read_text(errors="replace").splitlines():
            if name := _entry(line):
                held |= {name, int(line.split()[4])}
    return held


def _entry(text: str) -> str:
    """Of /dev/shm, as a link or a line of /proc names it at its end."""
    found = re.search(rf"(?:^| ){re.escape(str(SHM))}/([^/]+?)(?: \(deleted\)$|/|$)", text)
    return found[1] if found else ""


def _inode(path: Path) -> int | None:
    """None if it has just gone."""
    try:
        return path.stat().st_ino
    except OSError:
        return None
