"""What ended processes have left in shared memory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

SHARED = Path("/dev/shm")
MEETING = "vllm_dist_"
"""How the names begin of the files at which vLLM's ranks meet."""


def clear_shared(folder: Path) -> None:
    """Removes what ranks of vLLM on CPUs shared that met at a file below this folder. They name it
    after that file (`_CPUSHMDistributed` of vLLM 0.32), and leave both, however they end."""
    for file in folder.rglob(f"{MEETING}*"):
        for region in SHARED.glob(f"{file.name}-*"):
            with suppress(OSError):
                region.unlink()
