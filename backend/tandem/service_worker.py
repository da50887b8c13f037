"""What the engine's process does (`engine_main`).

The main thread steps the engine and sends what it brings; what comes is received and prepared by
others (`intake`). When the other side is gone, the process ends at once, whatever it is doing.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Protocol

import torch

from tandem.config import EngineConfig
from tandem.deadlines import Deadlines
from tandem.errors import TandemError
from tandem.garbage import look_as_usual
from tandem.intake import Dropped, Inbox, Intake, Reader, ToEngine
from tandem.killing import die_with_parent
from tandem.logs import log_as
from tandem.messages import (
    Abort,
    Alive,
    Broken,
    Failed,
    Measured,
    Outputs,
    Ready,
    Refused,
    Start,
)
from tandem.metrics import Meters, Report
from tandem.outbox import Outbox
from tandem.output import Streams
from tandem.request import Request, RequestOutput
from tandem.runners.rank_worker import PULSE_S
from tandem.watchdog import Watchdog

logger = logging.getLogger("tandem")

REPORT_S = 1.0  # between two reports of a busy engine
_NO_MEMORY = (
    "read the log, and where memory ran out lower kv_cache_memory or give the models more ranks."
)


class ServedEngine(Reader, Protocol):
    """What both engines are to this process."""

    shares_processor: bool
    """Whether it computes on the cores that everything else here runs on."""
    meters: Meters
    streams: Streams
    """Of the requests that are here."""

    @property
    def steps(self) -> int:
        """How many have ended."""
        ...

    @property
    def idle(self) -> bool:
        """Nothing is running or waiting."""
        ...

    def add(self, request: Request) -> None:
        """Takes what it has prepared. Raises `InvalidRequestError` or `QueueFullError`."""
        ...

    def abort(self, request_id: str) -> RequestOutput | None:
        """Drops a request; its last word, or None if it is not here."""
        ...

    def step(self) -> list[RequestOutput]:
        """What the next step brings."""
        ...

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Has `on_lost` called with the reason should a part of the engine be lost."""
        ...

    def report(self) -> Report:
        """What was counted since the last report."""
        ...

    def check_integrity(self) -> None:
        """Asserts that an idle engine holds nothing."""
        ...


def main() -> None:
    """Serves one connection until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches us too; our parent decides
    # The kernel sends it behind our end to our group, if one of that is stopped: Python's resource
    # tracker would end before it has removed what vLLM's processes share.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    die_with_parent()
    os.set_inheritable(int(sys.argv[1]), False)  # its end is ours
    connection = Connection(int(sys.argv[1]))
    start: Start = connection.recv()
    log_as(start.config.log_level)
    try:
        engine = build(start.config)
    except TandemError as error:
        connection.send(Failed(str(error)))
        return
    except Exception as error:  # a bug, or memory that is not there
        logger.exception("The engine cannot be built.")
        connection.send(Failed(f"The engine cannot be built ({_named(error)}): {_NO_MEMORY}"))
        return
    look_as_usual()
    gc.freeze()  # what is loaded stays: collections need not walk it
    intake = Intake(connection, engine, start.config.queue_timeout)
    sender = _Sender(connection)
    engine.watch(sender.give_up)
    sender.send(Ready())
    watchdog = Watchdog(engine, start.config.step_timeout)
    threading.Thread(target=_beat, args=(sender, watchdog, intake), daemon=True).start()
    try:
        with torch.inference_mode():
            _run(engine, sender, intake.inbox, Deadlines(start.config.queue_timeout))
    except TandemError as error:
        sender.give_up(str(error))
    except Exception as error:  # a bug, or memory that is not there
        logger.exception("The engine failed.")
        sender.give_up(f"The engine failed ({_named(error)})")


def build(config: EngineConfig) -> ServedEngine:
    """The engine that the configuration names. Raises `ConfigError` and `CheckpointError`."""
    if config.engine == "vllm":
        from tandem.vllm.engine import VllmEngine

        return VllmEngine(config)
    from tandem.engine import NativeEngine

    return NativeEngine(config)


class _Sender:
    """The way out, which threads share."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: Ready | Outputs | Refused | Measured | Alive | Broken) -> None:
        with self._lock:
            try:
                self._connection.send(message)
            except OSError:
                os._exit(0)  # the other side is gone

    def give_up(self, reason: str) -> None:
        """Ends the process, whatever its other threads wait for."""
        self.send(Broken(reason))
        os._exit(1)


def _beat(sender: _Sender, watchdog: Watchdog, intake: Intake) -> None:
    """Shows the service that this process runs, and ends it when its engine is hung."""
    while True:
        sender.send(Alive(intake.unread))
        if watchdog.hung():
            sender.give_up(watchdog.reason)
        time.sleep(PULSE_S)


def _run(engine: ServedEngine, sender: _Sender, inbox: Inbox, deadlines: Deadlines) -> None:
    """Steps the engine while there is work, and waits for some when there is none."""
    outbox = Outbox(sender.send, engine.shares_processor)
    due = 0.0
    while True:
        if engine.idle:
            engine.check_integrity()
        if engine.idle or time.monotonic() >= due:
            sender.send(Measured(engine.report()))
            due = time.monotonic() + REPORT_S
        messages = [inbox.get()] if engine.idle else []
        while not inbox.empty():
            messages.append(inbox.get())
        for message in messages:
            if _handle(message, engine, sender, outbox) and isinstance(message, Request):
                deadlines.add(message.id, message.params, message.arrival)
        for deadline in deadlines.over(engine.streams):
            if engine.abort(deadline.request_id) is not None:
                outbox.drop(deadline.request_id)
                sender.send(deadline.refusal())
        if not engine.idle:
            outbox.put(engine.step())


def _named(error: Exception) -> str:
    """An error's kind and its first line."""
    first, *_ = str(error).split("\n")
    return f"{type(error).__name__}: {first.rstrip('.')}"


def _handle(message: ToEngine, engine: ServedEngine, sender: _Sender, outbox: Outbox) -> bool:
    """Whether the engine took it."""
    if isinstance(message, Refused):
        sender.send(message)
        return False
    if not isinstance(message, Request):
        output = _dropped(message, engine)
        if output is not None:
            outbox.put([output])
        return output is not None
    try:
        engine.add(message)
    except TandemError as error:
        sender.send(Refused(message.id, type(error).__name__, str(error)))
        return False
    return True


def _dropped(message: Abort | Dropped, engine: ServedEngine) -> RequestOutput | None:
    """A request's last word, or None if it has ended already."""
    if isinstance(message, Dropped):
        return RequestOutput(message.request_id, finish_reason="abort")
    return engine.abort(message.request_id)
