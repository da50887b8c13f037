"""When a request's time is over."""

import time
from types import SimpleNamespace

from tandem import SamplingParams
from tandem.deadlines import FEW, Deadlines
from tandem.output import Streams


def streams(*begun, waiting=()):
    """Of requests that are here, begun or not."""
    admitted = dict.fromkeys(begun, 1.0) | dict.fromkeys(waiting)
    return Streams(
        (name, SimpleNamespace(request=SimpleNamespace(admitted=at)))
        for name, at in admitted.items()
    )


def ask(request_id, timeout=None, age=0.0):
    params = SamplingParams(timeout=timeout)
    return request_id, params, time.monotonic() - age


def over(deadlines, here):
    return [(one.request_id, one.queued) for one in deadlines.over(here)]


def test_a_timeout_counts_from_the_arrival():
    deadlines = Deadlines(None)
    deadlines.add(*ask("late", timeout=5, age=6))
    deadlines.add(*ask("early", timeout=5, age=4))
    deadlines.add(*ask("patient", age=100))
    here = streams("late", "early", "patient")
    assert over(deadlines, here) == [("late", False)]
    assert over(deadlines, here) == []


def test_a_queue_timeout_holds_for_those_that_wait():
    deadlines = Deadlines(3)
    for name in ("begun", "waiting"):
        deadlines.add(*ask(name, timeout=100, age=4))
    assert over(deadlines, streams("begun", waiting=["waiting"])) == [("waiting", True)]


def test_what_has_ended_has_no_deadline():
    deadlines = Deadlines(None)
    deadlines.add(*ask("gone", timeout=1, age=2))
    assert over(deadlines, streams()) == []


def test_deadlines_of_what_has_ended_do_not_pile_up():
    deadlines = Deadlines(None)
    for number in range(10 * FEW):
        deadlines.add(*ask(str(number), timeout=1000))
        assert over(deadlines, streams("0", str(number))) == []
    assert len(deadlines._heap) <= FEW + 1
    assert "0" in {one.request_id for one in deadlines._heap}
