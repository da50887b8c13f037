"""How long after a client has left its request is gone and its KV cache free.

Triton's log, at level debug, says when the model has noticed that the client is gone, and when the
request has ended: the engine has freed its blocks by then, so the time is a little more than that
of the freeing. The log is read every millisecond. Where /metrics had shown the request before, it
is asked until it no longer does.
"""

from __future__ import annotations

import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from tandem.serving import Endpoints
from tandem_client.params import GenerationParams
from tandem_client.wire import Fields, request_fields
from tools.soak.account import read
from tools.soak.leavers import GrpcLeaver, HttpLeaver, KilledLeaver, Leaver
from tools.soak.runs import Tick, served

ONE_RUNS = {"max_num_seqs": "1", "log_level": "debug"}  # so that a second request waits
PROMPT_TOKENS = 1280  # two steps of max_num_batched_tokens; what is left is written for a while
WAIT_S = 60.0
TRIES = 5  # where what was to be left has ended before, as on a machine with too much to do
LOOK_S = 0.001
LATEST_S = 0.2
"""In which a client leaves, a random moment after its request is where it is to be left. (The
prompt takes longer than that on a few cores; where it does not, the request decodes already.)"""

LATE = "HTTP connection closed, no front"

State = Literal["queued", "prefilling", "decoding"]


class Doors(NamedTuple):
    """By which clients come."""

    triton: Endpoints
    front: Endpoints


Way = Callable[[Doors, str, Fields], Leaver]
WAYS: dict[str, Way] = {
    "gRPC stream cancelled": lambda doors, *rest: GrpcLeaver(doors.front.grpc, *rest),
    "gRPC client killed": lambda doors, *rest: KilledLeaver("grpc", doors.front.grpc, *rest),
    "HTTP connection closed": lambda doors, *rest: HttpLeaver(doors.front.http, *rest),
    "HTTP client killed": lambda doors, *rest: KilledLeaver("http", doors.front.http, *rest),
    "gRPC stream cancelled, no front": lambda doors, *rest: GrpcLeaver(doors.triton.grpc, *rest),
    LATE: lambda doors, *rest: HttpLeaver(doors.triton.http, *rest),
}


class Times(NamedTuple):
    """Milliseconds since the client left."""

    noticed: float
    """By the model."""
    freed: float
    """In the engine, and said."""
    shown: float | None
    """On /metrics. None: it had not shown the request either."""


class EndedError(Exception):
    """A request had all its tokens before it was left."""


class Log:
    """Triton's, with the moment at which each line was there."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._lines: list[tuple[float, str]] = []
        self._begun = ""

    def wait(self, name: str, said: str) -> float:
        """The moment at which it said this (a pattern) of the request. Raises EndedError: it ends
        by itself."""
        of_it = rf"tandem: {name}-[0-9a-f]{{16}} "
        pattern = re.compile(rf"{of_it}(?:({said})|has ended: (?!abort))")
        end, looked = time.monotonic() + WAIT_S, 0
        while time.monotonic() < end:
            for moment, line in self._lines[looked:]:
                found = pattern.search(line)
                if found and found[1] is None:
                    raise EndedError(line)
                if found:
                    return moment
            looked = len(self._lines)
            self._look()
            time.sleep(LOOK_S)
        known = [line for _, line in self._lines if re.search(of_it, line)]
        raise TimeoutError(f"The log does not say: {name} {said}; of it: {known}")

    def _look(self) -> None:
        *lines, self._begun = (self._begun + self._file.read().decode(errors="replace")).split("\n")
        moment = time.monotonic()
        self._lines += [(moment, line) for line in lines]


class Cancels:
    """Requests that are left, one after the other."""

    def __init__(self, doors: Doors, model: str, log: Log) -> None:
        self._doors = doors
        self._model = model
        self._log = log
        self._count = 0
        self._chance = random.Random(0)

    def measure(self, way: Way, state: State) -> Times:
        """Leaves a request that is queued, prefilling or decoding."""
        for _ in range(TRIES):
            with suppress(EndedError), self._running() if state == "queued" else nullcontext():
                return self._leave(way, state)
        raise EndedError(f"{TRIES} times what was {state}, or ran before it, ended by itself.")

    def _leave(self, way: Way, state: State) -> Times:
        name, leaver = self._send(way, PROMPT_TOKENS if state == "prefilling" else 4)
        try:
            if state == "decoding":
                leaver.begin()
            if state != "prefilling":  # which is over sooner than it is shown
                self._shown(state, True)
            time.sleep(self._chance.random() * LATEST_S)
        finally:  # if it has ended, that is why it was not shown
            left = time.monotonic()
            leaver.leave()
            noticed = self._log.wait(name, "is cancelled")
        freed = self._log.wait(name, "has ended: abort")
        shown = 1000 * (self._shown(state, False) - left)
        times = Times(1000 * (noticed - left), 1000 * (freed - left), shown)
        return times._replace(shown=None) if state == "prefilling" else times

    def _shown(self, state: State, there: bool) -> float:
        """The moment at which /metrics shows the request, or no longer. It sums up requests and
        the shares of caches in use, which are small here."""
        busy = 2 if state == "queued" else 1  # with the one that runs
        end = time.monotonic() + WAIT_S
        while (read(self._doors.triton.metrics).busy >= busy) != there:
            if time.monotonic() > end:
                raise TimeoutError(f"/metrics does not show a {state} request, or for ever.")
            time.sleep(10 * LOOK_S)
        return time.monotonic()

    def _send(self, way: Way, prompt: int) -> tuple[str, Leaver]:
        """A request that has arrived, and its name. No two have a prefix in common."""
        self._count += 1
        name, tokens = f"leaver {self._count}", self._chance.choices(range(100, 4000), k=prompt)
        params = GenerationParams(
            max_tokens=2000 - prompt, temperature=0.0, ignore_eos=True, num_draft_tokens=0
        )
        fields = request_fields(tokens, params, True, None, name)
        leaver = way(self._doors, self._model, fields)
        self._log.wait(name, "has arrived")
        return name, leaver

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Meanwhile one request runs, so that another waits."""
        name, leaver = self._send(WAYS["gRPC stream cancelled"], 4)
        leaver.begin()
        try:
            yield
        finally:  # if it has ended, that is why another one did not wait
            leaver.leave()
            self._log.wait(name, "has ended: abort")


def cells() -> list[tuple[str, State]]:
    """What can be measured: Triton's own HTTP notices a client that waits only when its turn
    comes."""
    states: Sequence[State] = ("queued", "prefilling", "decoding")
    return [(way, state) for state in states for way in WAYS if (way, state) != (LATE, "queued")]


def cancels(model: str, times: int, tick: Tick) -> dict[tuple[str, State], list[Times]]:
    """So many clients for each way to leave and each state of a request."""
    with served(model, ONE_RUNS, None) as one:
        doors = Doors(one.server.endpoints, one.front.endpoints)
        client = Cancels(doors, model, Log(one.server.log_path))
        client.measure(WAYS["gRPC stream cancelled"], "decoding")  # the first is slower
        found: dict[tuple[str, State], list[Times]] = {cell: [] for cell in cells()}
        for cell in found:
            for _ in range(times):
                found[cell].append(client.measure(WAYS[cell[0]], cell[1]))
                tick()
    return found


def summary(times: Sequence[float | None]) -> str:
    """Median and most."""
    known = [one for one in times if one is not None]
    return f"{statistics.median(known):.0f} ({max(known):.0f})" if known else ""
