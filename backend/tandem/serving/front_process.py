"""The process of the front that lets clients in to a server."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from tandem.front.door import Door
from tandem.serving.errors import ServingError
from tandem.serving.ports import choose_ports
from tandem.serving.processes import start
from tandem.serving.server import Endpoints
from tandem.triton_http import NO_ANSWER, ask

_LOOK_S = 0.02
_READY_S = 60.0
_END_S = 10.0
_WATCH_S, _ANSWER_S, _HANGS_S = 2.0, 2.0, 8.0
_PAUSES_S, _STEADY_S = (1.0, 30.0), 60.0
"""First and longest between two starts, each twice the last one; the first again for a front that
has run so long."""


class FrontProcess:
    """A front, once it has started. It ends with the thread that started it."""

    def __init__(self, door: Door, log: BinaryIO | None = None) -> None:
        """log: where it says what it has to say; None: on stderr. Raises ServingError where a port
        cannot be had."""
        self._log = log
        self._door = door._replace(ports=choose_ports(door.host, door.ports))
        self._process: subprocess.Popen[bytes] | None = None
        self._next_look = self._last_answer = 0.0
        self._began = self._trusted_until = -math.inf
        self._pause = 0.0

    @property
    def endpoints(self) -> Endpoints:
        """Where clients find it."""
        return Endpoints.at(self._door.host, self._door.ports)

    @property
    def pid(self) -> int | None:
        """Of its process."""
        return self._process.pid if self._process else None

    def start(self, triton: Endpoints) -> None:
        """In the place of one that has ended or hangs. Returns at once: before Triton listens the
        front says so. What it ends by it says itself."""
        self.stop(grace=0)
        now = time.monotonic()
        steady = now > self._began + _STEADY_S
        self._pause = _PAUSES_S[0] if steady else min(2 * self._pause, _PAUSES_S[1])
        self._began, self._trusted_until = now, now + self._pause
        self._last_answer = now + _READY_S  # until it has answered once
        door = self._door
        options = [f"--host={door.host}"]
        options += [f"--most-calls={door.most_calls}", f"--most-bytes={door.most_bytes}"]
        options += [f"--triton-{name}={at}" for name, at in triton._asdict().items()]
        options += [f"--{name}-port={port}" for name, port in door.ports._asdict().items()]
        self._process = start(
            [sys.executable, "-m", "tandem.cli", "front", *options],
            # gRPC would log what clients send that is no gRPC.
            {"GRPC_VERBOSITY": "NONE"} | os.environ,
            errors=self._log,
        )

    def wait_ready(self) -> None:
        """Returns when it listens on all its ports. Raises ServingError: it has ended, or does
        not."""
        deadline = time.monotonic() + _READY_S
        while ask(self.endpoints.metrics, "/metrics").status == NO_ANSWER:  # the last of them
            late = time.monotonic() > deadline
            if late or self.ended():
                what = "does not answer" if late else "has ended"
                raise ServingError(f"The front {what}: see above, or serve with --no-front.")
            time.sleep(_LOOK_S)
        self._last_answer = time.monotonic()

    def ended(self) -> bool:
        """Whether it has, by itself."""
        return self._process is not None and self._process.poll() is not None

    def fault(self) -> str:
        """What is wrong with it, where it has to be started again; looked for once in a while, and
        more seldom where it has just been started again."""
        now = time.monotonic()
        if now < self._trusted_until:
            return ""
        if self.ended():
            return "has ended"
        if now >= self._next_look:
            answers = ask(self.endpoints.metrics, "/", timeout=_ANSWER_S).status != NO_ANSWER
            self._last_answer = now if answers else self._last_answer
            self._next_look = time.monotonic() + _WATCH_S
        return "" if now < self._last_answer + _HANGS_S else "does not answer"

    def stop(self, grace: float = _END_S) -> None:
        """Lets what is on its way arrive, for so many seconds."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def front_before(
    triton: Endpoints, door: Door | None = None, log: BinaryIO | None = None
) -> Iterator[FrontProcess]:
    """One that is ready, before a Triton; on free ports of this machine, unless told otherwise."""
    front = FrontProcess(door or Door(), log)
    try:
        front.start(triton)
        front.wait_ready()
        yield front
    finally:
        front.stop()
