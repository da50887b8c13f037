"""What the engine's process is sent: read at once, prepared on the way to the engine."""

from __future__ import annotations

import itertools
import logging
import os
import queue
import threading
from multiprocessing.connection import Connection
from typing import NamedTuple, Protocol

from tandem.deadlines import Deadlines
from tandem.errors import TandemError
from tandem.messages import Abort, Refused, Submit
from tandem.request import Prompt, Request, SamplingParams

logger = logging.getLogger("tandem")

NOTICED = 4096
"""Characters that take so long to be tokenized, some milliseconds, that others are let by..."""
LETS_BY_S = 0.02
"""... that come less than so much later: no stream of short prompts keeps a long one out."""


class Dropped(NamedTuple):
    """A request that was taken back before it was prepared: the engine never sees it."""

    request_id: str


ToEngine = Request | Abort | Dropped | Refused
Inbox = queue.SimpleQueue[ToEngine]


class Reader(Protocol):
    """What an engine is to those who prepare requests for it."""

    def prepare(
        self, prompt: Prompt, params: SamplingParams, request_id: str, arrival: float | None = None
    ) -> Request:
        """All that can be done for a request beside the engine's steps: it is checked, and its
        texts are tokenized, which takes long. Called from any thread. Raises
        `InvalidRequestError`."""
        ...

    def wake(self) -> None:
        """Something has come: a `step` that only waits is to end. Called from any thread."""
        ...


class _Unread(dict[str, Submit]):
    """Requests that are still to be prepared, by id."""

    def waits(self, request_id: str) -> bool:
        """All that are here do."""
        return request_id in self


class Intake:
    """One thread receives, so that the other side never waits to send, and one prepares, so that
    what is long to tokenize does not hold up the engine. Who takes a request back does not wait for
    either, nor does one whose time is over. Of the prompts that wait, long ones let others by."""

    def __init__(self, connection: Connection, engine: Reader, queue_timeout: float | None) -> None:
        """When the connection closes, the process ends at once."""
        self.inbox: Inbox = queue.SimpleQueue()
        """For the engine."""
        self._connection = connection
        self._engine = engine
        self._submitted = queue.PriorityQueue[tuple[int, float, int, str]]()
        """Ids: nothing else is left of who was taken back."""
        self._places = itertools.count()
        self._deadlines = Deadlines(queue_timeout)
        self._waiting = _Unread()
        """Changed under ..."""
        self._lock = threading.Lock()
        for run in (self._receive, self._prepare_all):
            threading.Thread(target=run, daemon=True).start()

    @property
    def unread(self) -> int:
        """Requests that are still to be prepared."""
        return len(self._waiting)

    def _receive(self) -> None:
        while True:
            try:
                come = self._connection.poll(self._deadlines.pause())
                message = self._connection.recv() if come else None
            except (EOFError, OSError):
                os._exit(0)
            if message is not None:
                self._take(message)
            for deadline in self._deadlines.over(self._waiting):
                if self._left(deadline.request_id):
                    self._pass_on(deadline.refusal())

    def _take(self, message: Submit | Abort) -> None:
        if isinstance(message, Submit):
            with self._lock:
                self._waiting[message.request_id] = message
            self._deadlines.add(message.request_id, message.params, message.arrival)
            turn = message.arrival + LETS_BY_S * _length(message.prompt)
            rank = message.params.priority, turn, next(self._places)
            self._submitted.put((*rank, message.request_id))
        elif self._left(message.request_id):
            self._pass_on(Dropped(message.request_id))
        else:
            self._pass_on(message)

    def _left(self, request_id: str) -> bool:
        """Whether it still waited to be prepared; no longer."""
        with self._lock:
            return self._waiting.pop(request_id, None) is not None

    def _prepare_all(self) -> None:
        while True:
            *_, request_id = self._submitted.get()
            with self._lock:
                submit = self._waiting.get(request_id)
            if submit is None:
                continue
            prepared = self._prepared(submit)
            with self._lock:  # an abort comes before this, or behind it in the inbox
                if self._waiting.pop(request_id, None) is not None:
                    self._pass_on(prepared)

    def _prepared(self, submit: Submit) -> Request | Refused:
        name, prompt, params, arrival = submit
        try:
            return self._engine.prepare(prompt, params, name, arrival)
        except TandemError as error:
            return Refused(name, type(error).__name__, str(error))
        except Exception:  # or nobody's request would be prepared any more
            logger.exception("%s could not be prepared.", name)
            return Refused(
                name, TandemError.__name__, "The request could not be read: see the log."
            )

    def _pass_on(self, message: ToEngine) -> None:
        self.inbox.put(message)
        self._engine.wake()


def _length(prompt: Prompt) -> int:
    """How much there is to tokenize, roughly."""
    return len(prompt) // NOTICED if isinstance(prompt, str) else 0
