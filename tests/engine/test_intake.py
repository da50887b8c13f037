"""What is on its way to the engine: prompts wait their turn to be tokenized, aborts do not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest

from tandem.errors import InvalidRequestError
from tandem.intake import LETS_BY_S, NOTICED, Dropped, Intake
from tandem.messages import Abort, Refused, Submit
from tandem.request import SamplingParams
from tests.engine.sinks import WAIT_S, until

QUEUE_TIMEOUT = 30.0
HUGE = NOTICED * "huge"
OPEN: list[Connection] = []
"""Connections that must not close: their end would end this process."""


class SlowEngine:
    """Prepares a request when it is let."""

    def __init__(self) -> None:
        self.may = threading.Semaphore(0)
        self.read: list[str] = []

    def prepare(
        self, prompt: str, params: SamplingParams, request_id: str, arrival: float
    ) -> SimpleNamespace:
        self.read.append(prompt)
        assert self.may.acquire(timeout=WAIT_S)
        if prompt == "bad":
            raise InvalidRequestError("No.")
        if prompt == "bug":
            raise ZeroDivisionError
        return SimpleNamespace(request_id=request_id, tokens=[len(prompt)], arrival=arrival)

    def wake(self) -> None:
        pass


@pytest.fixture
def engine() -> SlowEngine:
    return SlowEngine()


@pytest.fixture
def ends(engine: SlowEngine) -> Iterator[tuple[Connection, Intake]]:
    """The service's end of the connection, and the engine's."""
    ours, theirs = Pipe()
    OPEN.append(ours)
    yield ours, Intake(theirs, engine, queue_timeout=QUEUE_TIMEOUT)


def submit(
    name: str, prompt: str = "text", arrival: float | None = None, **params: float
) -> Submit:
    come = time.monotonic() if arrival is None else arrival
    return Submit(name, prompt, SamplingParams(**params), come)


def names(intake: Intake, count: int) -> list[str]:
    """Of the next requests that come to the engine."""
    return [intake.inbox.get(timeout=WAIT_S).request_id for _ in range(count)]


def until_read(engine: SlowEngine, count: int) -> None:
    """Waits until so many prompts were begun."""
    end = time.monotonic() + WAIT_S
    while len(engine.read) < count:
        assert time.monotonic() < end
        time.sleep(0.001)


def all_are_here(ours: Connection, intake: Intake) -> None:
    """What was sent before has been received."""
    ours.send(Abort("all are here"))
    assert intake.inbox.get(timeout=WAIT_S) == Abort("all are here")


def test_requests_come_prepared_and_in_order(ends, engine):
    ours, intake = ends
    engine.may.release(4)
    asked = [submit("a", "abc"), submit("b", "bad"), submit("c", "bug"), submit("d", "a")]
    for message in asked:
        ours.send(message)
    first, refused, failed, last = (intake.inbox.get(timeout=WAIT_S) for _ in range(4))
    assert (first.request_id, first.tokens, first.arrival) == ("a", [3], asked[0].arrival)
    assert refused == Refused("b", "InvalidRequestError", "No.")
    assert (failed.request_id, failed.kind) == ("c", "TandemError")
    assert (last.request_id, last.tokens) == ("d", [1])


def test_those_that_wait_to_be_tokenized_are_known(ends, engine):
    ours, intake = ends
    for name in ("begun", "waits", "leaves"):
        ours.send(submit(name))
    until(lambda: intake.unread == 3)
    ours.send(Abort("leaves"))
    until(lambda: intake.unread == 2)
    engine.may.release(2)
    assert names(intake, 3) == ["leaves", "begun", "waits"]
    assert intake.unread == 0


def test_long_prompts_let_short_ones_by(ends, engine):
    ours, intake = ends
    ours.send(submit("begun", HUGE))
    until_read(engine, 1)
    now = time.monotonic()
    for name, prompt in (("huge", HUGE), ("less", HUGE[1:]), ("long", "long"), ("ids", [1, 2])):
        ours.send(submit(name, prompt, now))
    all_are_here(ours, intake)
    engine.may.release(5)
    assert names(intake, 5) == ["begun", "long", "ids", "less", "huge"]


def test_a_long_prompt_lets_by_for_a_while_alone(ends, engine):
    ours, intake = ends
    ours.send(submit("begun"))
    until_read(engine, 1)
    now, lets_by = time.monotonic(), LETS_BY_S * (len(HUGE) // NOTICED)
    for name, prompt, later in (("huge", HUGE, 0), ("in time", "a", 0.9), ("late", "a", 1.1)):
        ours.send(submit(name, prompt, now + later * lets_by))
    all_are_here(ours, intake)
    engine.may.release(4)
    assert names(intake, 4) == ["begun", "in time", "huge", "late"]


def test_the_more_important_come_first_however_long(ends, engine):
    ours, intake = ends
    ours.send(submit("begun"))
    until_read(engine, 1)
    ours.send(submit("short"))
    ours.send(submit("urgent", HUGE, priority=-1))
    all_are_here(ours, intake)
    engine.may.release(3)
    assert names(intake, 3) == ["begun", "urgent", "short"]


@pytest.mark.parametrize("place", ["first", "second"])
@pytest.mark.parametrize("queued", [True, False])
def test_time_runs_out_before_a_prompt_is_tokenized(ends, engine, place, queued):
    """Whether its prompt is just being read or still waits."""
    ours, intake = ends
    late = {"arrival": time.monotonic() - QUEUE_TIMEOUT} if queued else {}
    for name in ("first", "second"):
        one = submit(name, timeout=0.2 if name == place and not queued else 1000)
        ours.send(one._replace(**late) if name == place else one)
    refused = intake.inbox.get(timeout=WAIT_S)
    assert isinstance(refused, Refused)
    assert (refused.request_id, refused.kind) == (place, "RequestTimeoutError")
    assert ("queue_timeout" in refused.reason) == queued
    ours.send(submit("last"))
    engine.may.release(3)
    assert names(intake, 2) == [name for name in ("first", "second", "last") if name != place]


def test_an_abort_of_one_that_runs_does_not_wait_for_prompts(ends, engine):
    ours, intake = ends
    ours.send(submit("long"))
    ours.send(Abort("running"))
    assert intake.inbox.get(timeout=WAIT_S) == Abort("running")
    engine.may.release()
    assert intake.inbox.get(timeout=WAIT_S).request_id == "long"


@pytest.mark.parametrize("place", ["first", "second"])
def test_one_taken_back_before_it_is_tokenized_never_comes(ends, engine, place):
    """Whether its prompt is just being read or still waits."""
    ours, intake = ends
    ours.send(submit("first"))
    ours.send(submit("second"))
    until_read(engine, 1)
    ours.send(Abort(place))
    assert intake.inbox.get(timeout=WAIT_S) == Dropped(place)
    ours.send(submit("last"))
    engine.may.release(3)
    came = [intake.inbox.get(timeout=WAIT_S).request_id for _ in range(2)]
    assert came == [one for one in ("first", "second", "last") if one != place]
    assert len(engine.read) == (3 if place == "first" else 2)


def test_an_abort_behind_the_tokens_follows_them(ends, engine):
    ours, intake = ends
    engine.may.release()
    ours.send(submit("one"))
    assert intake.inbox.get(timeout=WAIT_S).request_id == "one"
    ours.send(Abort("one"))
    assert intake.inbox.get(timeout=WAIT_S) == Abort("one")
