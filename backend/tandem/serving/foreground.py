"""`tandem serve` and `tandem demo`: a server that lives as long as its command."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console

from tandem.front.door import Door
from tandem.serving.errors import ServingError
from tandem.serving.front_process import FrontProcess
from tandem.serving.log import LogFollower
from tandem.serving.lost_models import Stubs
from tandem.serving.model_config import read_model
from tandem.serving.options import ServerOptions
from tandem.serving.server import TritonServer

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Lines of the log: all; the model's own; also Triton's errors and warnings.
_ANYTHING: Final = re.compile("")
_TANDEM: Final = re.compile("tandem: ")
_TANDEM_OR_TROUBLE: Final = re.compile(r"tandem: |[EW]\d{4} ")
# In which a second signal is taken for the first one's echo: make passes its own one on.
_ECHO_S: Final = 0.25
_LOOK_S: Final = 1.0
_NOW_S: Final = 1.0  # that Triton has for its end behind a second signal
_PROMPT: Final = "def fibonacci(n):"


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and a closed terminal (but under nohup) interrupt like Ctrl-C, and only the first of
    them counts, so that nothing interrupts the tidying up."""
    signals = set(_SIGNALS)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signals.remove(signal.SIGHUP)

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, lambda number, frame: None)
        raise KeyboardInterrupt

    previous = {each: signal.signal(each, interrupt) for each in signals}
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


def serve(options: ServerOptions, door: Door | None, console: Console, verbose: bool) -> None:
    """Serves until a signal comes; raises `ServingError` when the server ends by itself. door:
    where clients come, if not to Triton's own ports."""
    with interruptible():
        server, grace = TritonServer(options), None
        front = FrontProcess(door) if door else None
        try:
            _start(server, front, console)
            try:
                _announce(server, front, console)
                _watch(server, front, console, verbose)
            except KeyboardInterrupt:
                grace = _drain(server, console)
        except KeyboardInterrupt:
            console.print("Stopping")
        finally:
            server.stop(grace)
            if front:  # which passes on what Triton has said
                front.stop()


def demo(options: ServerOptions, arguments: Sequence[str], console: Console) -> int:
    """Runs the client's demo against a server of its own; the demo's exit code."""
    (name,) = options.models
    tokenizer = read_model(options.model_repository / name).path("model")
    if tokenizer is None:
        raise ServingError(f"The model {name} names no 'model' folder: set it in config.pbtxt.")
    with interruptible():
        server = TritonServer(options)
        try:
            _start(server, None, console)
            url = ["--url", server.endpoints.grpc, "--model", name, "--tokenizer", str(tokenizer)]
            program = [sys.executable, "-m", "tandem_client.demo"]
            # Through no proxy, which knows no way to this machine itself.
            environment = os.environ | {"no_grpc_proxy": server.endpoints.grpc.rpartition(":")[0]}
            run = subprocess.run([*program, *url, *arguments], env=environment, check=False)
            return run.returncode
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        finally:
            server.stop()


def _start(server: TritonServer, front: FrontProcess | None, console: Console) -> None:
    names = ", ".join(server.options.models) or "no model"
    began, told = time.monotonic(), 0
    if not console.is_terminal:
        console.print(f"Triton is loading {names}")
    with console.status("") as status:

        def show() -> None:
            nonlocal told
            for reason in server.failed_starts[told:]:
                console.print(
                    f"{reason} It is started again.", highlight=False, markup=False, soft_wrap=True
                )
            told = len(server.failed_starts)
            status.update(f"Triton is loading {names} ({time.monotonic() - began:.0f} s)")

        show()
        server.start()
        if front:
            front.start(server.endpoints)
        server.wait_ready(tick=show)
        if front:
            front.wait_ready()
    console.print(f"Triton serves {names}, ready after {time.monotonic() - began:.1f} s")


def _drain(server: TritonServer, console: Console) -> float | None:
    """Lets requests that run end, as long as models do or until another signal comes; the seconds
    that Triton has then."""
    with suppress(OSError, SystemExit):  # of a terminal that was closed
        console.print("Stopping: what runs may end first (Ctrl-C again: now)")
    time.sleep(_ECHO_S)
    try:
        with interruptible():
            if not server.drain():
                console.print("Triton does not unload a model: it is ended.")
    except KeyboardInterrupt:
        return _NOW_S
    return None


def _announce(server: TritonServer, front: FrontProcess | None, console: Console) -> None:
    http, grpc, metrics = (front or server).endpoints
    lines = [f"HTTP {http}, gRPC {grpc}, metrics http://{metrics}/metrics, log {server.log_path}"]
    if front:
        own = server.endpoints
        lines.append(f"Triton's own, to load and unload models: HTTP {own.http}, gRPC {own.grpc}")
    for name in server.options.models[:1]:
        body = {
            "text_input": _PROMPT,
            "stream": True,
            "sampling_parameters": json.dumps({"max_tokens": 64, "temperature": 0}),
        }
        url = f"http://{http}/v2/models/{name}/generate_stream"
        client = f"{_client()} generate '{_PROMPT}' --url {grpc} --model {name}"
        lines += ["", f"curl -N {url} -d '{json.dumps(body)}'", client, ""]
    lines.append("Ctrl-C stops the server.")
    for line in lines:
        # No wrapping: the commands are there to be copied.
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _client() -> str:
    """The client's command, as a shell in this folder finds it."""
    beside = Path(sys.executable).with_name("tandem-client")
    on_path = shutil.which("tandem-client")
    if on_path and Path(on_path).samefile(beside):
        return "tandem-client"
    return str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside)


def _watch(
    server: TritonServer, front: FrontProcess | None, console: Console, verbose: bool
) -> None:
    """Shows what the log says, until the server ends, and starts a front again that has ended or
    hangs."""
    log, lost = LogFollower(server.log_path, server.log_begin), _LostModels(server, console)
    worth_showing = _ANYTHING if verbose else _TANDEM  # Triton's warnings at start are no news
    while True:
        for line in log.new_lines():
            if worth_showing.match(line):
                console.print(line, markup=False, highlight=False, soft_wrap=True)
        worth_showing = _ANYTHING if verbose else _TANDEM_OR_TROUBLE
        lost.look()
        if front and (fault := front.fault()):
            console.print(f"The front {fault}: it is started again.")
            front.start(server.endpoints)
        if server.exit_code(timeout=0.25) is not None:
            raise ServingError(server.failure())


class _LostModels:
    """Has models whose process has ended loaded again."""

    def __init__(self, server: TritonServer, console: Console) -> None:
        assert server.pid is not None
        self._server, self._console = server, console
        self._stubs = Stubs(server.pid)
        self._next = 0.0

    def look(self) -> None:
        """At most once in a while: all processes of this machine are read for it."""
        if time.monotonic() < self._next:
            return
        for name in self._stubs.lost():
            self._console.print(f"The process of {name} has ended: it is loaded again.")
            threading.Thread(target=self._reload, args=(name,), daemon=True).start()
        self._next = time.monotonic() + _LOOK_S

    def _reload(self, name: str) -> None:
        if self._server.reload(name):
            self._console.print(f"{name} serves again.")
        else:
            self._console.print(
                f"{name} was not loaded again: load it, or see the log and restart the server."
            )
