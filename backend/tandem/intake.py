"""What the engine's process is sent: read at once, prompts tokenized on the way to the engine."""

from __future__ import annotations

import os
import queue
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NamedTuple, Protocol

from tandem.errors import TandemError
from tandem.limits import Limits
from tandem.messages import Abort, Submit
from tandem.tokenizer import Tokenizer


class Dropped(NamedTuple):
    """A request that was taken back before its prompt was tokenized: the engine never sees it."""

    request_id: str


Inbox = queue.SimpleQueue[Submit | Abort | Dropped]


class Reader(Protocol):
    """What an engine is to those who tokenize for it."""

    tokenizer: Tokenizer
    limits: Limits

    def wake(self) -> None:
        """Something has come: a `step` that only waits is to end. Called from any thread."""
        ...


class Intake:
    """One thread receives, so that the other side never waits to send, and one tokenizes, so that
    long prompts do not hold up the engine. Who takes a request back does not wait for either."""

    def __init__(self, connection: Connection, engine: Reader) -> None:
        """When the connection closes, the process ends at once."""
        self.inbox: Inbox = queue.SimpleQueue()
        """For the engine."""
        self._connection = connection
        self._engine = engine
        self._submitted = queue.SimpleQueue[Submit]()
        self._waiting: set[str] = set()
        """Requests whose prompts are still to be tokenized, under ..."""
        self._lock = threading.Lock()
        for run in (self._receive, self._tokenize):
            threading.Thread(target=run, daemon=True).start()

    def _receive(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                os._exit(0)
            self._take(message)

    def _take(self, message: Submit | Abort) -> None:
        if isinstance(message, Submit):
            with self._lock:
                self._waiting.add(message.request_id)
            self._submitted.put(message)
        elif self._left(message.request_id):
            self._pass_on(Dropped(message.request_id))
        else:
            self._pass_on(message)

    def _left(self, request_id: str) -> bool:
        """Whether its prompt was still waiting; no longer."""
        with self._lock:
            waited = request_id in self._waiting
            self._waiting.discard(request_id)
            return waited

    def _tokenize(self) -> None:
        while True:
            self._prepare(self._submitted.get())

    def _prepare(self, submit: Submit) -> None:
        with self._lock:
            if submit.request_id not in self._waiting:
                return
        with suppress(TandemError):  # the engine refuses it when its turn comes
            most = self._engine.limits.max_model_len
            submit = submit._replace(prompt=self._engine.tokenizer.prompt(submit.prompt, most))
        with self._lock:  # an abort comes before this, or behind it in the inbox
            if submit.request_id in self._waiting:
                self._waiting.discard(submit.request_id)
                self._pass_on(submit)

    def _pass_on(self, message: Submit | Abort | Dropped) -> None:
        self.inbox.put(message)
        self._engine.wake()
