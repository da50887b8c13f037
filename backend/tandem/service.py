"""The engine in a process of its own, as its user sees it: submit, abort, and answers by call.

The process border keeps the caller responsive while the engine computes, lets the engine use an
interpreter of its own, and turns a crash into an error and a restart.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol, TypeVar

from tandem.config import EngineConfig
from tandem.engine_process import EngineProcess, interpreter
from tandem.errors import EngineDeadError, QueueFullError, TandemError
from tandem.logs import shown
from tandem.messages import Abort, Alive, Broken, Measured, Outputs, Refused, Submit
from tandem.metrics import (
    FAILED,
    FINISHED,
    INTERNAL,
    LOST,
    REFUSALS,
    RESTARTS,
    UNLOADED,
    WAITING,
    Key,
    Report,
    counted,
    standing,
)
from tandem.request import Prompt, RequestOutput, SamplingParams

logger = logging.getLogger("tandem")
Answer = TypeVar("Answer", RequestOutput, TandemError)

FIRST_PAUSE_S = 1.0  # before a crashed engine is started again; doubles up to the longest
LONGEST_PAUSE_S = 30.0
HEALTHY_S = 60.0  # an engine that has run for so long is no longer one that crashes at once
UNLOADING = "The model is being unloaded."
HANG_S = 4.0  # an engine that has been silent for so long is lost

_OUTCOMES = REFUSALS | {TandemError.__name__: INTERNAL}
FromEngine = Alive | Broken | Measured | Outputs | Refused


class Sink(Protocol):
    """Where one request's answers go; called from the service's thread, and must not block."""

    def on_output(self, output: RequestOutput) -> None:
        """More of the answer; the last one has a finish reason."""
        ...

    def on_error(self, error: TandemError) -> None:
        """The request is over without an answer."""
        ...


class EngineService:
    """Starts the engine's process, routes its answers, starts it again when it dies."""

    def __init__(
        self,
        config: EngineConfig,
        python: str | None = None,
        on_report: Callable[[Report], None] = lambda report: None,
        family: Path | None = None,
    ) -> None:
        """Returns when the engine is ready; it ends with the thread that called. `python`: the
        interpreter that runs it; `on_report` is called with what was counted and timed, from any
        thread, and must not block; `family`: what the `Guardian` of this process knows it by.

        Raises `ConfigError` with the reason if it cannot be built.
        """
        self._config = config
        self._python = python or interpreter(config)
        self._family = family
        self._on_report = on_report
        self._lock = threading.Lock()  # over sending, the sinks and the process's exchange
        self._sinks: dict[str, Sink] = {}
        self._most = config.max_num_seqs + config.max_queue_size
        self._stopping = threading.Event()
        self._alive = False
        self._crashes = 0  # one soon after the other
        self._broken = ""  # why the engine ends, where it could still say so
        self._launch()
        self._thread = threading.Thread(target=self._watch, name="tandem-service", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether requests are taken now."""
        return self._alive

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    def submit(self, prompt: Prompt, params: SamplingParams, sink: Sink, name: str = "") -> str:
        """Hands a request over; returns its id, which begins with the name that the client gave
        it and stands in every line of the log about it. Raises `EngineDeadError`, or
        `QueueFullError`, as `check_room` does."""
        request_id = f"{name or 'request'}-{secrets.token_hex(8)}"  # names need not be unique
        with self._lock:
            self.check_room()
            self._sinks[request_id] = sink
            if not self._send(Submit(request_id, prompt, params, time.monotonic())):
                del self._sinks[request_id]
                unloaded = self._stopping.is_set()
                self._on_report(counted(FAILED, 1, UNLOADED if unloaded else LOST))
                raise EngineDeadError(
                    UNLOADING
                    if unloaded
                    else "The engine is restarting after a crash: try again shortly."
                )
            logger.debug("%s has arrived.", request_id)
            if self._config.log_prompts:
                logger.info("%s has the prompt %s", request_id, shown(prompt))
        return request_id

    def check_room(self) -> None:
        """Raises `QueueFullError` where so many requests are here that the engine would refuse one
        more, or is so far behind that it would not even do that."""
        count = len(self._sinks)
        if count >= self._most:
            self._on_report(counted(FAILED, 1, "queue_full"))
            raise QueueFullError(
                f"{count} requests are here, as many as max_num_seqs and max_queue_size allow: "
                "try again later."
            )

    def abort(self, request_id: str) -> None:
        """Drops a request; its sink gets an output that ends in `abort`."""
        with self._lock:
            self._send(Abort(request_id))

    def stop(self, reason: str = UNLOADING) -> None:
        """Ends the engine's process and fails what is still running, with this reason."""
        self._stopping.set()
        with self._lock:
            if self._alive:
                self._process.hang_up()
            else:
                self._process.kill()  # crashed already, or just being started again
        self._thread.join()
        self._fail_all(reason, UNLOADED)

    def _launch(self) -> None:
        """Starts a process and waits until it is ready, or is killed because we stop."""
        with self._lock:
            if self._stopping.is_set():
                raise EngineDeadError(UNLOADING)
            self._process = EngineProcess(self._config, self._python, self._family)
        self._process.wait_ready()
        self._broken = ""
        self._launched = time.monotonic()
        self._stand(True)
        with self._lock:
            self._alive = True
            if self._stopping.is_set():
                self._process.hang_up()

    def _stand(self, up: bool) -> None:
        self._queued = self._unread = 0.0
        self._on_report(standing(up, self._config.runners_with_kv))

    def _send(self, message: Submit | Abort) -> bool:
        if not self._alive:
            return False
        try:
            self._process.connection.send(message)
        except OSError:  # the watcher sees it too, and restarts
            return False
        return True

    # -- answers -------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Routes answers until the process ends; then, unless stopped, starts it again."""
        while True:
            self._route_until_closed()
            self._stand(False)
            said = self._broken
            if said:  # its end may take long, or, where a device holds it, never come
                self._lose_all(said)
            code = self._process.end()
            if not said:
                how = "does not end" if code is None else f"ended with code {code}"
                self._lose_all(f"The engine's process {how}.")
            self._process.tidy()
            if self._stopping.is_set():
                return
            if not self._relaunch():
                return

    def _lose_all(self, reason: str) -> None:
        """Answers all requests with why the engine is lost, unless we stop it."""
        if self._stopping.is_set():
            return
        logger.error("%s It is started again.", reason)
        self._fail_all(f"{reason.rstrip('.')}: send the request again.", LOST)

    def _relaunch(self) -> bool:
        if time.monotonic() - self._launched > HEALTHY_S:
            self._crashes = 0
        while not self._stopping.wait(self._pause()):
            self._crashes += 1
            try:
                self._launch()
                self._on_report(counted(RESTARTS))
                return True
            except (TandemError, OSError) as error:
                logger.error("The engine did not start again: %s", error)
        return False

    def _pause(self) -> float:
        """Seconds before the next start."""
        return min(FIRST_PAUSE_S * 2 ** min(self._crashes, 16), LONGEST_PAUSE_S)

    def _route_until_closed(self) -> None:
        with suppress(EOFError, OSError):
            while not self._broken:
                self._dispatch(self._receive(self._process.connection))
            self._process.kill()  # it ends by itself, unless a device holds it
        with self._lock:
            self._alive = False

    def _receive(self, connection: Connection) -> list[FromEngine]:
        """Waits for a message and takes all others that have piled up behind it.

        An engine that is silent for too long is ended.
        """
        if not connection.poll(HANG_S):
            self._broken = f"The engine has not shown a sign of life for {HANG_S:.0f} s."
            self._process.kill()
            raise EOFError  # none would come where what it started holds the other end
        messages: list[FromEngine] = [connection.recv()]
        try:
            while connection.poll():
                messages.append(connection.recv())
        except (EOFError, OSError):  # what came before counts; the next call raises again
            pass
        return messages

    def _dispatch(self, messages: list[FromEngine]) -> None:
        """One call a request: what has piled up is merged. How the engine stands is told behind
        what it has answered."""
        merged: dict[str, RequestOutput] = {}
        reports: list[Report] = []
        for message in messages:
            if isinstance(message, Broken):
                self._broken = message.reason
            elif isinstance(message, Measured):
                self._queued = message.report.gauges.get(Key(WAITING), 0.0)
                reports += [message.report, self._waiting()]
            elif isinstance(message, Alive):
                self._unread = message.unread
                reports.append(self._waiting())
            elif isinstance(message, Refused):
                self._refuse(message)
            elif isinstance(message, Outputs):
                for output in message.outputs:
                    earlier = merged.setdefault(output.request_id, output)
                    if earlier is not output:
                        earlier.merge(output)
        for output in merged.values():
            self._answer(output)
        for report in reports:
            self._on_report(report)

    def _waiting(self) -> Report:
        """In the engine's queue, and before it, as both were told last."""
        return Report({}, {Key(WAITING): self._queued + self._unread}, {})

    def _refuse(self, refused: Refused) -> None:
        sink = self._take_sink(refused.request_id)
        if sink is not None:
            self._on_report(counted(FAILED, 1, _OUTCOMES.get(refused.kind, LOST)))
            logger.debug("%s has ended: %s", refused.request_id, refused.reason)
            _deliver(refused.request_id, sink.on_error, refused.error())

    def _answer(self, output: RequestOutput) -> None:
        request_id = output.request_id
        sink = self._sinks.get(request_id)
        if sink is None:  # it was given up
            return
        if output.finished:
            self._take_sink(request_id)
            logger.debug("%s has ended: %s.", request_id, output.finish_reason)
        if not _deliver(request_id, sink.on_output, output):
            self._give_up(request_id, sink)
        elif output.finished:
            # counted here, for what a killed engine had counted and not yet told would be lost
            self._on_report(counted(FINISHED, 1, output.finish_reason or ""))

    def _give_up(self, request_id: str, sink: Sink) -> None:
        """A sink that lost a part of its answer gets no more of it, but an end."""
        if self._take_sink(request_id) is not None:  # the engine still has it
            self.abort(request_id)
        self._on_report(counted(FAILED, 1, INTERNAL))
        error = TandemError("An answer could not be sent: see the log.")
        _deliver(request_id, sink.on_error, error)

    def _take_sink(self, request_id: str) -> Sink | None:
        with self._lock:
            return self._sinks.pop(request_id, None)

    def _fail_all(self, reason: str, outcome: str) -> None:
        with self._lock:
            sinks, self._sinks = self._sinks, {}
        if sinks:
            self._on_report(counted(FAILED, len(sinks), outcome))
        for request_id, sink in sinks.items():
            logger.warning("%s is lost: %s", request_id, reason)
            _deliver(request_id, sink.on_error, EngineDeadError(reason))


def _deliver(request_id: str, take: Callable[[Answer], None], answer: Answer) -> bool:
    """Hands an answer over. A sink that fails harms its own request alone."""
    try:
        take(answer)
    except Exception:
        logger.exception("%s: an answer could not be handed over.", request_id)
        return False
    return True
