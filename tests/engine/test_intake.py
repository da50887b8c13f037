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
from tandem.intake import Dropped, Intake
from tandem.messages import Abort, Submit
from tandem.request import SamplingParams
from tests.engine.sinks import WAIT_S

OPEN: list[Connection] = []
"""Connections that must not close: their end would end this process."""


class SlowTokenizer:
    """Reads a prompt when it is let."""

    def __init__(self) -> None:
        self.may = threading.Semaphore(0)
        self.read: list[str] = []

    def prompt(self, prompt: str, most: int) -> list[int]:
        self.read.append(prompt)
        assert self.may.acquire(timeout=WAIT_S)
        if prompt == "bad":
            raise InvalidRequestError("No.")
        return [len(prompt)]


@pytest.fixture
def tokenizer() -> SlowTokenizer:
    return SlowTokenizer()


@pytest.fixture
def ends(tokenizer: SlowTokenizer) -> Iterator[tuple[Connection, Intake]]:
    """The service's end of the connection, and the engine's."""
    ours, theirs = Pipe()
    limits = SimpleNamespace(max_model_len=8)
    engine = SimpleNamespace(tokenizer=tokenizer, limits=limits, wake=lambda: None)
    OPEN.append(ours)
    yield ours, Intake(theirs, engine)


def submit(name: str, prompt: str = "text") -> Submit:
    return Submit(name, prompt, SamplingParams(), 0.0)


def until_read(tokenizer: SlowTokenizer, count: int) -> None:
    """Waits until so many prompts were begun."""
    end = time.monotonic() + WAIT_S
    while len(tokenizer.read) < count:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_prompts_come_as_tokens_and_in_order(ends, tokenizer):
    ours, intake = ends
    tokenizer.may.release(3)
    for message in (submit("a", "abc"), submit("b", "bad"), submit("c", "a")):
        ours.send(message)
    came = [intake.inbox.get(timeout=WAIT_S) for _ in range(3)]
    assert [(one.request_id, one.prompt) for one in came] == [("a", [3]), ("b", "bad"), ("c", [1])]


def test_an_abort_of_one_that_runs_does_not_wait_for_prompts(ends, tokenizer):
    ours, intake = ends
    ours.send(submit("long"))
    ours.send(Abort("running"))
    assert intake.inbox.get(timeout=WAIT_S) == Abort("running")
    tokenizer.may.release()
    assert intake.inbox.get(timeout=WAIT_S).request_id == "long"


@pytest.mark.parametrize("place", ["first", "second"])
def test_one_taken_back_before_it_is_tokenized_never_comes(ends, tokenizer, place):
    """Whether its prompt is just being read or still waits."""
    ours, intake = ends
    ours.send(submit("first"))
    ours.send(submit("second"))
    until_read(tokenizer, 1)
    ours.send(Abort(place))
    assert intake.inbox.get(timeout=WAIT_S) == Dropped(place)
    ours.send(submit("last"))
    tokenizer.may.release(3)
    came = [intake.inbox.get(timeout=WAIT_S).request_id for _ in range(2)]
    assert came == [one for one in ("first", "second", "last") if one != place]
    assert len(tokenizer.read) == (3 if place == "first" else 2)


def test_an_abort_behind_the_tokens_follows_them(ends, tokenizer):
    ours, intake = ends
    tokenizer.may.release()
    ours.send(submit("one"))
    assert intake.inbox.get(timeout=WAIT_S).request_id == "one"
    ours.send(Abort("one"))
    assert intake.inbox.get(timeout=WAIT_S) == Abort("one")
