"""How long a start of Triton may take before it counts as one that hangs.

A load can be without an end: Triton 2.51 waits for ever for a model's process that it once took for
dead, and its Python backend by condition variables shared between processes, of which glibc's could
miss a wake-up (bug 25847 of glibc, mended in 2.41).
"""

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tandem.config import EngineConfig
from tandem.logs import HAS_STARTED, STARTS
from tandem.serving.errors import ServingError
from tandem.serving.log import LogFollower
from tandem.serving.model_config import read_model

MARGIN_S = 60.0
"""For all of a start but the engines' own."""
_LOOK_S = 1.0  # most that counts of the time between two looks: the machine may have stood still
_SAID: Final = re.compile(f"tandem: (?:{STARTS.format('(.+)')}|{HAS_STARTED.format('(.+)')})$")


class Patience:
    """With one start, beginning now."""

    def __init__(self, models: Sequence[Path], log: LogFollower) -> None:
        """models: their folders; log: what this start writes."""
        self._left = max(map(_start_timeout, models), default=0.0) + MARGIN_S
        self._idle = 0.0
        """Seconds since the last engine has started, while none starts."""
        self._silent = {folder.name for folder in models}
        """Those of which no engine has started."""
        self._starting = 0
        """Engines, of a model's instances."""
        self._log, self._before = log, time.monotonic()

    def over(self) -> bool:
        """Whether it is. Engines that have all started leave little to do."""
        news = [said for said in map(_SAID.match, self._log.new_lines()) if said]
        for said in news:
            self._read(said)
        now = time.monotonic()
        passed, self._before = min(now - self._before, _LOOK_S), now
        self._left -= passed
        self._idle = 0.0 if news or self._silent or self._starting else self._idle + passed
        return self._left < 0 or self._idle > MARGIN_S

    def _read(self, said: re.Match[str]) -> None:
        starts, has_started = said.groups()
        self._starting += 1 if starts else -1
        self._silent.discard(has_started)


def _start_timeout(folder: Path) -> float:
    """Seconds; where it is none, or the configuration is, Triton or the model says so."""
    with suppress(ServingError, ValueError):
        return float(read_model(folder).parameters.get("start_timeout", ""))
    return EngineConfig.model_fields["start_timeout"].default
