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

from tandem.config import EngineConfig
from tandem.logs import HAS_STARTED, STARTS
from tandem.serving.errors import ServingError
from tandem.serving.log import LogFollower
from tandem.serving.model_config import ServedModel, read_model

MARGIN_S = 60.0
"""For all of a start but the engines' own."""
_LOOK_S = 1.0  # most that counts of the time between two looks: the machine may have stood still


class Patience:
    """With one start, beginning now."""

    def __init__(self, models: Sequence[Path], triton: int, log: LogFollower) -> None:
        """models: their folders; triton: process id; log: what this start writes."""
        read = {folder.name: _read_model(folder) for folder in models}
        self._allowed = {name: _start_timeout(model) + MARGIN_S for name, model in read.items()}
        self._left = max(self._allowed.values(), default=MARGIN_S)
        self._idle = 0.0
        """Seconds since the last engine has started, while nothing else is known to be done."""
        self._awaited = set(read)
        """Models of which no engine has started, or that are warmed up behind it."""
        self._lasting = {name for name, model in read.items() if model and model.warmed_up}
        self._starting = 0
        """Engines, of a model's instances."""
        self._log, self._before = log, time.monotonic()
        words = (words.format(model="(.+)", triton=triton) for words in (STARTS, HAS_STARTED))
        self._said = re.compile("tandem: (?:{}|{})$".format(*words))

    def over(self) -> bool:
        """Whether it is. Engines that have all started leave little to do."""
        now = time.monotonic()
        passed, self._before = min(now - self._before, _LOOK_S), now
        self._left -= passed
        news = [said for said in map(self._said.match, self._log.new_lines()) if said]
        for said in news:
            self._read(*said.groups())
        self._idle = 0.0 if news or self._awaited or self._starting else self._idle + passed
        return self._left < 0 or self._idle > MARGIN_S

    def _read(self, starts: str | None, has_started: str | None) -> None:
        # Triton may load one model behind the other.
        self._left = max(self._left, self._allowed.get(starts or "", MARGIN_S))
        self._starting += 1 if starts else -1
        self._awaited -= {has_started} - self._lasting


def _read_model(folder: Path) -> ServedModel | None:
    """None where Triton will say why it is none."""
    with suppress(ServingError):
        return read_model(folder)
    return None


def _start_timeout(model: ServedModel | None) -> float:
    """Seconds; the default where the model will say why that is none."""
    with suppress(ValueError):
        if model:
            return float(model.parameters.get("start_timeout", ""))
    return EngineConfig.model_fields["start_timeout"].default
