"""Every error a user can cause or see: one sentence that names what is wrong and what to do."""

import re
from typing import Final

NO_ROOM: Final = re.compile(r"\d+ requests are (?:(?P<full>here)|waiting), .*: try again later\.")
"""What a model says that has none, and nothing else that it says. full: nor will it before one of
its requests ends. (Those that wait may be let in sooner.)"""


class TandemError(Exception):
    """Base of Tandem's errors. `str(error)` is a sentence meant for the user."""


class ConfigError(TandemError):
    """A configuration value that is missing, malformed or impossible."""


class CheckpointError(TandemError):
    """A checkpoint folder that cannot be read or does not fit the configuration."""


class InvalidRequestError(TandemError):
    """A request that can never be served as it was sent."""


class QueueFullError(TandemError):
    """The waiting queue is full: try again later. (Its sentence is one of `NO_ROOM`.)"""


def queue_full(waiting: int) -> QueueFullError:
    """Where so many requests wait."""
    return QueueFullError(
        f"{waiting} requests are waiting, the most that max_queue_size allows: try again later."
    )


class RequestTimeoutError(TandemError):
    """The request took longer than it, or the queue, allows."""


class EngineDeadError(TandemError):
    """The engine's process has ended; running requests are lost."""
