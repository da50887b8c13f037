"""The Triton model: requests in, responses out. The engine behind it knows nothing of Triton.

Decoupled: `execute` hands requests to the engine's service and returns; the service's thread
sends one response for each verified run of tokens, and the final flag exactly once.
"""

from __future__ import annotations

import json
import locale
import logging
import os
import queue
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tandem.config import EngineConfig
from tandem.draining import Drain, Load
from tandem.errors import (
    EngineDeadError,
    InvalidRequestError,
    QueueFullError,
    RequestTimeoutError,
    TandemError,
)
from tandem.guardian import Guardian
from tandem.logs import HAS_STARTED, STARTS, log_as
from tandem.metrics import FAILED, INTERNAL, counted
from tandem.request import RequestOutput, TokenLogprobs
from tandem.service import EngineService
from tandem.standstill import SAID, Standstill
from tandem.triton_metrics import Board, Reports, Void
from tandem.triton_request import Ask, name_of, parse, printable, taken_back

logger = logging.getLogger("tandem")

CANCEL_POLLS_S = 0.02, 0.25
"""Least and most between two looks at who has left."""
CANCEL_SHARE = 0.005  # of the time, to look in: Triton answers for one request in some 0.1 ms
NAMELESS = "A request without an id"
DRAIN_POLL_S = 0.5
IDLE_POLLS = 10
EARLY_S, MOST_EARLY = 5.0, 4096  # in which a request may come behind the one that takes it back
GIVEN_UP_S = 1.0
"""Triton asks a model's process for a sign of life while it loads, and waits so long for one."""
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
CODES = {  # names: pb_utils gets its TritonError only after this module was loaded
    InvalidRequestError: "INVALID_ARG",
    QueueFullError: "UNAVAILABLE",
    RequestTimeoutError: "UNAVAILABLE",
    EngineDeadError: "UNAVAILABLE",
}


class TritonPythonModel:
    """What Triton's Python backend loads."""

    def initialize(self, args: dict[str, str]) -> None:
        """Starts the engine; the model is unavailable with the error's text if that fails."""
        locale.setlocale(locale.LC_ALL, "C.UTF-8")  # the stub's own is ASCII
        config = engine_config(args)
        log_as(config.log_level)
        self.max_prompt_bytes = config.max_prompt_bytes
        self.guardian = Guardian()
        self.reports: Reports = queue.SimpleQueue()
        self.board = open_board(args, self.reports)  # first: its heart beats while weights load
        name, triton = args["model_name"], os.getppid()
        logger.info(STARTS.format(model=name, triton=triton))
        try:
            self.service = start_engine(config, self.reports, self.guardian.family)
        except BaseException:
            self.board.close()
            raise
        self.board.look()  # a model that is ready is said to be up
        self.active: dict[str, ResponseStream] = {}
        self.early: dict[str, float] = {}
        self.stopping = threading.Event()
        load = Load(triton, name, args["model_version"])
        self.drain = Drain(load, config.drain_timeout)
        self.watchers = [
            threading.Thread(target=watch, daemon=True)
            for watch in (self._watch_cancels, self._watch_unload)
        ]
        for watcher in self.watchers:
            watcher.start()
        logger.info(HAS_STARTED.format(model=name, triton=triton))

    def is_ready(self) -> bool:
        """Whether the engine takes requests (asked by Triton 2.67 and later)."""
        return self.service.alive

    def execute(self, requests: list[Any]) -> None:
        """Hands every request over and returns at once."""
        for request in requests:
            sender, name = request.get_response_sender(), ""
            try:
                name = name_of(request)
                if (other := taken_back(request, self.max_prompt_bytes)) is not None:
                    self._take_back(other, sender)
                    continue
                self.service.check_room()  # before it is read, which takes longer
                stream = ResponseStream(sender, parse(request, self.max_prompt_bytes), self.active)
                stream.begin(self.service, name or printable(stream.ask.cancel_id))
                if self._taken_back_before(stream.ask.cancel_id):
                    self._abort(stream.request_id)
            except InvalidRequestError as error:
                self.reports.put(counted(FAILED, 1, "invalid"))
                self._refuse(sender, name, error)
            except TandemError as error:
                self._refuse(sender, name, error)
            except Exception as error:  # a raise would end the whole batch, what is begun included
                self.reports.put(counted(FAILED, 1, INTERNAL))
                logger.exception("%s could not be read.", name or NAMELESS)
                send_error(sender, TandemError(f"The request could not be read: {error}."))

    def _take_back(self, cancel_id: str, sender: Any) -> None:
        """It may have ended meanwhile, or come later: Triton reads long requests longer."""
        active = self.active.copy().items()
        found = [key for key, stream in active if stream.ask.cancel_id == cancel_id != ""]
        for request_id in found:
            self._abort(request_id)
        if not found:
            self.early[cancel_id] = time.monotonic()
            if len(self.early) > MOST_EARLY:
                del self.early[next(iter(self.early))]
        response = pb_utils.InferenceResponse([_strings("text_output", "")])
        sender.send(response, flags=FINAL)

    def _taken_back_before(self, cancel_id: str) -> bool:
        at = self.early.get(cancel_id) if cancel_id else None
        return at is not None and time.monotonic() < at + EARLY_S

    def _abort(self, request_id: str) -> None:
        logger.debug("%s is cancelled.", request_id)
        self.service.abort(request_id)

    def _refuse(self, sender: Any, name: str, error: TandemError) -> None:
        logger.debug("%s is refused: %s", name or NAMELESS, error)
        send_error(sender, error)

    def finalize(self) -> None:
        """Ends the engine; what is still running is answered UNAVAILABLE."""
        self.stopping.set()
        for watcher in self.watchers:
            watcher.join()
        self.service.stop()
        self.board.close()

    def _watch_cancels(self) -> None:
        """Clients may leave at any time: queued, prefilling or decoding."""
        least, most = CANCEL_POLLS_S
        pause = least
        while not self.stopping.wait(pause):
            begun = time.perf_counter()
            self._look_for_cancels()
            took = time.perf_counter() - begun
            pause = min(most, max(least, took / CANCEL_SHARE))

    def _watch_unload(self) -> None:
        """What still runs when a model that is being unloaded has waited long enough is ended. So
        is, less promptly, an engine that nothing runs in: Triton 2.51 keeps some requests that have
        ended, and then never finalizes the model."""
        for number in count():
            if self.stopping.wait(DRAIN_POLL_S):
                return
            if (self.active or number % IDLE_POLLS == 0) and self._drained():
                self.service.stop(self.drain.reason)
                return

    def _drained(self) -> bool:
        try:
            return self.drain.over()
        except Exception:  # Triton may say anything
            logger.exception("Whether the model is being unloaded cannot be told.")
            return False

    def _look_for_cancels(self) -> None:
        # A function of its own: a variable that outlived the look would hold a response sender,
        # and Triton does not unload a model while one exists.
        for request_id, stream in self.active.copy().items():
            try:
                if stream.cancelled():
                    self._abort(request_id)
            except Exception:  # the others' cancels must still be noticed
                logger.exception("%s: whether it was cancelled cannot be told.", request_id)


class ResponseStream:
    """One request's answers on their way out."""

    def __init__(self, sender: Any, ask: Ask, active: dict[str, ResponseStream]) -> None:
        self.sender = sender
        self.ask = ask
        self.active = active
        self.request_id = ""
        self.lock = threading.Lock()  # Triton must not be asked about an answered request
        self.over = False
        self.noticed = False
        self.pending: RequestOutput | None = None

    def begin(self, service: EngineService, name: str) -> None:
        """Submits the request. Its answers may arrive before this returns."""
        self.request_id = service.submit(self.ask.prompt, self.ask.params, self, name)
        self.active[self.request_id] = self
        if self.over:
            self.active.pop(self.request_id, None)

    def cancelled(self) -> bool:
        """True once: when the client has just been found gone."""
        with self.lock:
            if self.noticed or self.over or not self.sender.is_cancelled():
                return False
            self.noticed = True
            return True

    def on_output(self, output: RequestOutput) -> None:
        """Sends what a step brought, or keeps it for later."""
        if self.pending is not None:
            self.pending.merge(output)
            output = self.pending
        if output.finish_reason == "abort":
            self._end()
            send_cancelled(self.sender)
            return
        if not output.finished and (not self.ask.stream or not self._shows_something(output)):
            self.pending = output
            return
        self.pending = None
        response = pb_utils.InferenceResponse(output_tensors(output, self.ask))
        if output.finished:
            self._end()
            self.sender.send(response, flags=FINAL)
        else:
            self.sender.send(response)

    def on_error(self, error: TandemError) -> None:
        """Answers with the error and ends."""
        self._end()
        send_error(self.sender, error)

    def _shows_something(self, output: RequestOutput) -> bool:
        return bool(output.text) or "return_output_ids" in self.ask.wanted

    def _end(self) -> None:
        with self.lock:
            self.over = True
        self.active.pop(self.request_id, None)


def open_board(args: dict[str, str], reports: Reports) -> Board | Void:
    """A void where Triton was started without metrics."""
    try:
        return Board(args["model_name"], args["model_version"], reports)
    except pb_utils.TritonModelException as error:
        logger.warning("There will be no metrics of this model: %s", error)
        return Void(reports)


def engine_config(args: dict[str, str]) -> EngineConfig:
    """The parameters of config.pbtxt, checked."""
    parameters = json.loads(args["model_config"]).get("parameters", {})
    values = {key: value["string_value"] for key, value in parameters.items()}
    base = Path(args["model_repository"]) / args["model_version"]
    return EngineConfig.from_triton_parameters(values, base)


def start_engine(config: EngineConfig, reports: Reports, family: Path) -> EngineService:
    """Raises `EngineDeadError` where Triton may have given this process up meanwhile: it would wait
    for the end of it, and the load would have none."""
    with Standstill() as still:
        service = EngineService(config, on_report=reports.put, family=family)
    if still.longest >= GIVEN_UP_S:
        service.stop()
        error = EngineDeadError(
            f"While the model was loaded {SAID} {still.longest:.1f} s, and Triton may take it for "
            "dead: load it again, with processors to spare and on a machine that is not paused."
        )
        logger.error("%s", error)  # nobody else may say it
        raise error
    return service


def send_error(sender: Any, error: TandemError) -> None:
    """The error's sentence with its code, and the final flag."""
    _send_failure(sender, str(error), CODES.get(type(error), "INTERNAL"))


def send_cancelled(sender: Any) -> None:
    """The answer to a request that its client took back."""
    _send_failure(sender, "The request was cancelled.", "CANCELLED")


def _send_failure(sender: Any, text: str, code: str) -> None:
    error = pb_utils.TritonError(text, getattr(pb_utils.TritonError, code))
    response = pb_utils.InferenceResponse([], error=error)
    sender.send(response, flags=FINAL)


def output_tensors(output: RequestOutput, ask: Ask) -> list[Any]:
    """The text and whatever else was asked for; speculation totals come at the end."""
    wanted = ask.wanted
    text = output.text.replace("\0", "\ufffd")  # clients in C, and Triton's for OpenAI, end there
    tensors = [_strings("text_output", ask.prepend + text)]
    if "return_finish_reason" in wanted:
        tensors.append(_strings("finish_reason", str(output.finish_reason)))
    if "return_cumulative_logprob" in wanted:
        tensors.append(_numbers("cumulative_logprob", [output.cumulative_logprob], np.float32))
    if "return_logprobs" in wanted:
        tensors.append(_strings("logprobs", json.dumps([_entry(e) for e in output.logprobs])))
    if "return_num_input_tokens" in wanted:
        tensors.append(_numbers("num_input_tokens", [output.num_prompt_tokens], np.uint32))
    if "return_num_output_tokens" in wanted:
        tensors.append(_numbers("num_output_tokens", [len(output.token_ids)], np.uint32))
    if "return_output_ids" in wanted:
        tensors.append(_numbers("output_ids", output.token_ids, np.int32))
    if "return_request_id" in wanted:
        tensors.append(_strings("request_id", output.request_id))
    if "return_speculation_stats" in wanted:
        tensors += _speculation_tensors(output, "return_output_ids" in wanted)
    return tensors


def _speculation_tensors(output: RequestOutput, with_ids: bool) -> list[Any]:
    tensors = [_numbers("output_drafted", output.drafted, np.bool_)] if with_ids else []
    if output.finished:
        stats = output.stats
        tensors += [
            _numbers("acceptance_rate", [stats.acceptance_rate], np.float32),
            _numbers("total_draft_tokens", [stats.drafted], np.int32),
            _numbers("total_accepted_draft_tokens", [stats.accepted], np.int32),
            _numbers("num_rounds", [stats.rounds], np.int32),
        ]
    return tensors


def _entry(logprobs: TokenLogprobs) -> dict[str, dict[str, Any]]:
    return {
        str(token): {"logprob": value, "rank": rank, "decoded_token": text}
        for token, (value, rank, text) in logprobs.entries.items()
    }


def _strings(name: str, text: str) -> Any:
    return pb_utils.Tensor(name, np.array([text.encode()], dtype=np.object_))


def _numbers(name: str, values: Any, dtype: Any) -> Any:
    return pb_utils.Tensor(name, np.array(values, dtype=dtype))
