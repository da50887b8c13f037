"""What crosses the border between the service and the engine's process."""

from __future__ import annotations

from typing import NamedTuple

from tandem.config import EngineConfig
from tandem.errors import (
    EngineDeadError,
    InvalidRequestError,
    QueueFullError,
    RequestTimeoutError,
    TandemError,
)
from tandem.metrics import Report
from tandem.request import Prompt, RequestOutput, SamplingParams

REFUSING = (InvalidRequestError, QueueFullError, RequestTimeoutError, TandemError)


class Submit(NamedTuple):
    """A prompt, as text or token ids."""

    request_id: str
    prompt: Prompt
    params: SamplingParams
    arrival: float
    """By `time.monotonic`, which all processes of a machine share."""


class Abort(NamedTuple):
    """Drop a request; it is answered by an output that ends in `abort`."""

    request_id: str


class Start(NamedTuple):
    """The first message: build the engine."""

    config: EngineConfig


class Ready(NamedTuple):
    """The engine is built."""


class Failed(NamedTuple):
    """The engine could not be built."""

    reason: str


class Alive(NamedTuple):
    """A sign of life, sent again and again."""

    unread: int = 0
    """Requests that wait to be prepared: the engine does not know them yet."""


class Broken(NamedTuple):
    """The engine has lost a part of itself and ends."""

    reason: str


class Outputs(NamedTuple):
    """What one step brought."""

    outputs: list[RequestOutput]


class Measured(NamedTuple):
    """What was counted and timed since the last one."""

    report: Report


class Refused(NamedTuple):
    """A request that was not taken, or was given up."""

    request_id: str
    kind: str
    """Name of the error's class."""
    reason: str

    def error(self) -> TandemError:
        """The error as the engine raised it."""
        kinds = {cls.__name__: cls for cls in REFUSING}
        return kinds.get(self.kind, EngineDeadError)(self.reason)
