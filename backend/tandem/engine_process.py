"""The engine's process and the connection to it, seen from the service's side."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from tandem.config import EngineConfig
from tandem.errors import ConfigError
from tandem.killing import FAMILY, end_all, lives
from tandem.leftovers import SCRATCH, clear_shared
from tandem.messages import Failed, Ready, Start

STOP_GRACE_S = 5.0
LEFT_GRACE_S = 5.0  # for what the engine's process started, behind its end
VLLM_ENVIRONMENT = ".venv-vllm"
VLLM_SOCKETS = "VLLM_RPC_BASE_PATH"
"""Names the folder where vLLM's processes find each other. A killed one leaves its sockets."""
TEMPORARY = "TMPDIR"
"""Names the folder of temporary files, at one of which ranks on GPUs find each other."""
TITLES = {"SPT_NOENV": "1"}
"""vLLM's processes name themselves, and would write the name over their environment's first words,
by which they are found."""
PATIENCE = {"GOMP_SPINCOUNT": "20000"}
"""OpenMP's threads keep their cores for some 1 ms of waiting, longer than the engine's own work
between two passes. By themselves they do for 15 ms, taken from whoever wants the cores too."""


class EngineProcess:
    """One run of `engine_main`: it is started here, and ends when the connection does."""

    def __init__(self, config: EngineConfig, python: str, family: Path | None = None) -> None:
        """family: as `Guardian` has it."""
        self._config = config
        self._started = False
        self._scratch = ExitStack()
        environment = PATIENCE | os.environ | TITLES
        if family:
            environment[FAMILY] = str(family)
        # What it has there goes with it, however it ends.
        folder = VLLM_SOCKETS if config.engine == "vllm" else TEMPORARY
        environment[folder] = environment[SCRATCH] = self._scratch.enter_context(_folder(family))
        self._scratch.callback(clear_shared, Path(environment[SCRATCH]))
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [python, "-m", "tandem.engine_main", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                process_group=0,  # its own, by which `tidy` finds what it started
            )
        self.connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        """Returns when the engine is built. Raises `ConfigError` with the reason if it can't be."""
        reason = self._start()
        if reason is not None:
            self.end()
            self.tidy()
            raise ConfigError(reason)
        self._started = True

    def _start(self) -> str | None:
        """Why the engine is not built; None: it is."""
        seconds = self._config.start_timeout
        try:
            self.connection.send(Start(self._config))
            if self.connection.poll(seconds):
                answer: Ready | Failed = self.connection.recv()
                return answer.reason if isinstance(answer, Failed) else None
        except (EOFError, OSError):
            code = self.end()
            return f"The engine's process ended with code {code} at start{_hint(code)}."
        self.kill()
        return (
            f"The engine has not started within the {seconds:g} s that start_timeout allows: read "
            "the log for what it waits for, or allow more time."
        )

    def hang_up(self) -> None:
        """Wakes both ends: a `recv` under way returns with end-of-file."""
        with socket.socket(fileno=self.connection.fileno()) as alias:
            try:
                alias.shutdown(socket.SHUT_RDWR)
            finally:
                alias.detach()

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()

    def end(self) -> int | None:
        """Closes the connection and waits for the process, not for ever; its exit code, or None
        where even a kill does not end it, as when a device holds it."""
        self.connection.close()
        for _ in range(2):
            with suppress(subprocess.TimeoutExpired):
                return self._process.wait(STOP_GRACE_S)
            self._process.kill()
        return None

    def tidy(self) -> None:
        """Behind the process's end: waits for all that it started, not for ever. vLLM's processes
        end by themselves, and leave nothing, unless they are stopped, hung or still starting."""
        with self._scratch:
            end_all(self._left, LEFT_GRACE_S if self._started else 0.0)

    def _left(self) -> list[psutil.Process]:
        """The processes of its group that have not ended."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if os.getpgid(process.pid) == self.pid and lives(process):
                    found.append(process)
        return found


def _folder(within: Path | None) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tandem-", dir=within, ignore_cleanup_errors=True)


def _hint(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return ": if memory ran out, give it more, or take smaller models or less kv_cache_memory"
    return ": read the log"


def own_python() -> str:
    """Of the running environment; inside Triton's stub, sys.executable is not one."""
    return str(Path(sys.prefix) / "bin" / "python3")


def interpreter(config: EngineConfig) -> str:
    """Python of the engine's process. Raises `ConfigError` where vLLM's is missing."""
    if config.engine == "native":
        return own_python()
    python = config.vllm_python or Path(sys.prefix).with_name(VLLM_ENVIRONMENT) / "bin" / "python3"
    if not os.access(python, os.X_OK):
        raise ConfigError(
            f"engine is vllm but there is no interpreter {python}: run make setup-vllm, or name "
            "one that has vLLM and this package with vllm_python."
        )
    return str(python)
