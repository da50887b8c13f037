"""What ended processes have left in shared memory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

SHARED = Path("/dev/shm")
SCRATCH = "TANDEM_SCRATCH"
"""In the environment of an engine's process, and of all that it starts: a folder that goes with the
engine, and with it what is noted there."""
_NOTE = ".shared"


def note_shared(folder: Path, name: str) -> None:
    """Notes in a folder that what is in shared memory under names that begin so goes with it."""
    (folder / f"{name}{_NOTE}").touch()


def clear_shared(folder: Path) -> None:
    """Removes from shared memory what is noted below a folder."""
    for note in folder.rglob(f"*{_NOTE}"):
        for region in SHARED.glob(f"{note.stem}*"):
            with suppress(OSError):
                region.unlink()
