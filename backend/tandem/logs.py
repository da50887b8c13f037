"""What a process of Tandem writes to Triton's log."""

from __future__ import annotations

import logging
from collections.abc import Sequence

SHOWN = 1000  # characters or tokens of a prompt
STARTS = "The engine of {model} starts for Triton, process {triton}."
HAS_STARTED = "The engine of {model} has started for Triton, process {triton}."
"""What a model says of itself, by which a load that hangs is told from one that is long."""


def log_as(level: str) -> None:
    """Tandem's own lines from this level on; of libraries, which may show what is theirs to see
    and not the log's, warnings and worse."""
    logging.basicConfig(format="tandem: %(message)s")
    logging.getLogger("tandem").setLevel(level.upper())


def shown(prompt: str | Sequence[int]) -> str:
    """A prompt's beginning in one line, what is not printable escaped."""
    more = f" and {len(prompt) - SHOWN} more" if len(prompt) > SHOWN else ""
    return repr(prompt[:SHOWN] if isinstance(prompt, str) else list(prompt[:SHOWN])) + more
