"""A tritonserver process with its models: start, readiness, end."""

import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self
from urllib.parse import quote
from uuid import uuid4

from tandem.config import EngineConfig
from tandem.serving.errors import ServingError
from tandem.serving.installation import Installation, find_installation, server_environment
from tandem.serving.log import LogFollower, failure_reason, read_log
from tandem.serving.options import ServerOptions, check_arguments, check_models, command
from tandem.serving.patience import Patience
from tandem.serving.ports import Ports, choose_ports
from tandem.serving.processes import IDENTITY, end_members, start
from tandem.standstill import SAID
from tandem.triton_http import HEALTH, INDEX, NO_ANSWER, OK, Answer, ask, model_path

_READY_S = 1.0
_METRICS_S = 2.0
_POLL_S = 0.05
_UNLOAD_POLL_S = 0.25
_LOAD_S = 3600.0
_GO_S = 10.0  # for a model, behind its last request, and for Triton to say which there are
_SHM = Path("/dev/shm")
_MOST_STARTS = 3


class Endpoints(NamedTuple):
    """host:port of each protocol."""

    http: str
    grpc: str
    metrics: str

    @classmethod
    def at(cls, host: str, ports: Ports) -> Self:
        """As a client on this machine reaches them: what listens on every interface, through the
        loopback one."""
        named = f"[{host}]" if ":" in host else host
        reached = "localhost" if host in ("0.0.0.0", "::") else named
        return cls(*[f"{reached}:{port}" for port in ports])


class TritonServer:
    """Runs tritonserver; as a context manager it is ready inside and gone after.

    The server ends with the thread that called `start` and `wait_ready`, which may start it again.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.identity = f"tandem-{uuid4().hex[:12]}"
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: Ports | None = None
        self.failed_starts: list[str] = []
        """Behind which it was started again: why, a sentence each."""
        self.log_path = options.log_path or _temporary_log(self.identity)
        self.log_begin = 0
        """Byte of the log at which this start's part begins: a log that was asked for goes on."""
        self._patience: Patience
        """With this start."""
        self._was_ready = self._keep_log = False

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def endpoints(self) -> Endpoints:
        if self._ports is None:
            raise ServingError("The server has no endpoints before start().")
        return Endpoints.at(self.options.host, self._ports)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Starts the process and returns at once; `wait_ready` waits for the models."""
        if self._process is not None:
            raise ServingError("This server was started before: make a new TritonServer.")
        options = self.options
        check_models(options.model_repository, options.models)
        check_arguments(options.arguments)
        installation = find_installation(options.triton)
        self._ports = choose_ports(options.host, options.ports)
        self._launch(installation, self._ports)

    def _launch(self, installation: Installation, ports: Ports) -> None:
        options = self.options
        environment = server_environment(installation, {**os.environ, **options.environment})
        with self._open_log() as log:
            follower = LogFollower(self.log_path, self.log_begin)
            self._process = start(
                command(options, installation, ports, self.identity),
                environment | {IDENTITY: self.identity},
                output=log,
                errors=subprocess.STDOUT,
            )
        folders = [options.model_repository / name for name in options.models]
        self._patience = Patience(folders, self._process.pid, follower)

    def _open_log(self) -> BinaryIO:
        """One that was not asked for is for this user alone: it may have parts of prompts."""
        try:
            if self.options.log_path is None:
                self.log_path.touch(mode=0o600)
            log = self.log_path.open("a+b")
            self.log_begin = log.tell()
        except OSError as error:
            raise ServingError(f"{error}: choose another file for the log.") from None
        return log

    def wait_ready(self, timeout: float = math.inf, tick: Callable[[], None] | None = None) -> None:
        """Returns when the server and all of `options.models` are ready, or raises the reason. A
        model that does not load within its own `start_timeout` ends the server. A server that ends
        because the machine stood still, or does not come to an end of its start, is started again.

        `tick` is called between two looks, to show progress.
        """
        deadline = time.monotonic() + timeout
        while (status := self._status()) != OK:
            if self.exit_code() is not None:
                reason = self.failure()
                self._start_again(reason, remedy=SAID in reason)
            elif status == NO_ANSWER and self._patience.over():  # it listens when it has started
                self._start_again(
                    f"Triton's start does not end (log: {self.log_path}): where it only needs "
                    "longer, allow more by start_timeout.",
                    remedy=True,
                )
            if time.monotonic() > deadline:
                raise self._failed(
                    f"Triton was not ready after {timeout:g} s: read {self.log_path}, "
                    "or allow more time."
                )
            if tick:
                tick()
            time.sleep(_POLL_S)
        self._wait_metrics()
        self._was_ready = True

    def _wait_metrics(self) -> None:
        """Triton opens this port last, and not at all where it was told so."""
        deadline = time.monotonic() + _METRICS_S
        while ask(self.endpoints.metrics, "/metrics").status != OK:
            if self.exit_code() is not None:
                raise self._failed(self.failure())
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_S)

    def _status(self) -> int:
        """OK where all are ready, or what the first says that is not."""
        for path in [HEALTH, *[model_path(name, "ready") for name in self.options.models]]:
            if (status := ask(self.endpoints.http, path, timeout=_READY_S).status) != OK:
                return status
        return OK

    @property
    def starts(self) -> int:
        """How often it was started."""
        return len(self.failed_starts) + 1

    def _start_again(self, reason: str, remedy: bool) -> None:
        """Raises the reason where that is no remedy, or has not been one."""
        if self.starts == _MOST_STARTS or not remedy:
            raise self._failed(reason)
        self.failed_starts.append(reason)
        self._clear_away(grace=0)
        assert self._process is not None and self._ports is not None
        self._process.wait()
        self._launch(find_installation(self.options.triton), self._ports)

    def _failed(self, reason: str) -> ServingError:
        self._keep_log = True
        return ServingError(reason)

    def exit_code(self, timeout: float = 0) -> int | None:
        """Waits up to `timeout` seconds for the process to end; None: it still runs."""
        if self._process is None:
            return None
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def failure(self) -> str:
        """One sentence: why the ended process ended. Its log is asked only where it was never
        ready: later it has loads that were refused too, which end nothing."""
        code, reason = self.exit_code(), None
        if code is not None and code < 0:
            reason = f"killed by {signal.Signals(-code).name}"
        elif not self._was_ready:
            reason = failure_reason(read_log(self.log_path, self.log_begin))
        return (
            f"Triton ended: {(reason or f'exit code {code}').rstrip('.')} (log: {self.log_path})."
        )

    def drain(self) -> bool:
        """Unloads the models of a ready server and returns when they are gone, or have had more
        time than they give their requests: whether they are gone. No request begins, those that run
        have their model's `drain_timeout` to end. Triton 2.51 crashes, or does not end, when it is
        told to with streams open. Where Triton lets nobody see or unload its models this returns at
        once."""
        names = {model["name"] for model in self._models()}
        deadline = time.monotonic() + max(map(self._drain_timeout, names), default=0.0) + _GO_S
        for name in names:
            self._control(name, "unload")
        while any(model["state"] == "UNLOADING" for model in self._models()):
            if time.monotonic() > deadline:
                return False
            time.sleep(_UNLOAD_POLL_S)
        return True

    def _drain_timeout(self, name: str) -> float:
        """Seconds, by the configuration that is loaded."""
        answer = ask(self.endpoints.http, model_path(name, "config"))
        parameters = answer.json().get("parameters", {}) if answer.status == OK else {}
        given = parameters.get("drain_timeout", {}).get("string_value", "").strip()
        return float(given or EngineConfig.model_fields["drain_timeout"].default)

    def reload(self, name: str) -> bool:
        """Makes a model anew whose process has ended, without waiting for requests that it will
        never answer. Whether it did: not where Triton lets nobody do so, or where the model is no
        longer ready, for then somebody else unloads it."""
        ready = {"name": name, "state": "READY"}
        if not any(ready.items() <= model.items() for model in self._models()):
            return False
        self._control(name, "unload")
        return self._control(name, "load", _LOAD_S).status == OK

    def _control(self, name: str, what: str, timeout: float = 5.0) -> Answer:
        path = f"/v2/repository/models/{quote(name)}/{what}"
        return ask(self.endpoints.http, path, "POST", timeout)

    def _models(self) -> list[dict[str, Any]]:
        """Those that are loaded, or were; none where Triton refuses to say, has ended, or does not
        answer in time."""
        deadline = time.monotonic() + _GO_S
        while self.exit_code() is None and time.monotonic() < deadline:
            answer = ask(self.endpoints.http, INDEX, "POST")
            if answer.status == OK:
                return [model for model in answer.json() if "state" in model]
            if answer.status != NO_ANSWER:
                break
            time.sleep(_UNLOAD_POLL_S)
        return []

    def stop(self, grace: float | None = None) -> None:
        """Ends the server and everything it started: SIGTERM, after `grace` seconds SIGKILL."""
        if self._process is None:
            return
        failed = self.exit_code() is not None
        if not failed:
            self._process.terminate()
            # Triton itself needs a moment beyond the time it gives to running requests.
            self.exit_code(self.options.exit_timeout_s + 5 if grace is None else grace)
        self._clear_away(grace=0 if failed else 2)
        self._process.wait()
        if self.options.log_path is None and not (failed or self._keep_log):
            self.log_path.unlink(missing_ok=True)

    def _clear_away(self, grace: float) -> None:
        """What it started, and its shared memory."""
        end_members(self.identity, grace)
        for region in _SHM.glob(f"{self.identity}*"):
            region.unlink(missing_ok=True)


def _temporary_log(identity: str) -> Path:
    return Path(tempfile.gettempdir()) / f"{identity}.log"
