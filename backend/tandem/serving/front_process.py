"""The process of the front that lets clients in to a server."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tandem.front import MOST_BYTES, MOST_CALLS
from tandem.serving.errors import ServingError
from tandem.serving.ports import FREE, Ports, choose_ports
from tandem.serving.processes import before_exec
from tandem.serving.server import Endpoints
from tandem.triton_http import NO_ANSWER, ask

_LOOK_S = 0.02
_READY_S = 60.0
_END_S = 10.0


class Door(NamedTuple):
    """Where clients come."""

    host: str = "127.0.0.1"
    ports: Ports = FREE
    most_calls: int = MOST_CALLS
    most_bytes: int = MOST_BYTES


class FrontProcess:
    """A front, once it has started. It ends with the thread that started it."""

    def __init__(self, door: Door) -> None:
        """Raises ServingError where a port cannot be had."""
        self._door = door._replace(ports=choose_ports(door.host, door.ports))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoints(self) -> Endpoints:
        """Where clients find it."""
        return Endpoints.at(self._door.host, self._door.ports)

    @property
    def pid(self) -> int | None:
        """Of its process."""
        return self._process.pid if self._process else None

    def start(self, triton: Endpoints) -> None:
        """Returns at once. Before Triton listens it says so. What it has to say, to be ended by, it
        says itself, on stderr."""
        door = self._door
        options = [f"--host={door.host}"]
        options += [f"--most-calls={door.most_calls}", f"--most-bytes={door.most_bytes}"]
        options += [f"--triton-{name}={at}" for name, at in triton._asdict().items()]
        options += [f"--{name}-port={port}" for name, port in door.ports._asdict().items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tandem.cli", "front", *options],
            stdin=subprocess.DEVNULL,
            # A Ctrl-C in the terminal is for the program that owns the server.
            start_new_session=True,
            preexec_fn=before_exec(),
        )

    def wait_ready(self) -> None:
        """Returns when it listens on all its ports. Raises ServingError: it has ended."""
        deadline = time.monotonic() + _READY_S
        while ask(self.endpoints.metrics, "/metrics").status == NO_ANSWER:  # the last of them
            if self.ended() or time.monotonic() > deadline:
                raise ServingError("The front has ended: see above, or serve with --no-front.")
            time.sleep(_LOOK_S)

    def ended(self) -> bool:
        """Whether it has, by itself."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """Lets what is on its way arrive, for a few seconds."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def front_before(triton: Endpoints, door: Door | None = None) -> Iterator[FrontProcess]:
    """One that is ready, before a Triton; on free ports of this machine, unless told otherwise."""
    front = FrontProcess(door or Door())
    try:
        front.start(triton)
        front.wait_ready()
        yield front
    finally:
        front.stop()
