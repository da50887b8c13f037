"""When a request's time is over."""

import time

from tandem import SamplingParams
from tandem.deadlines import FEW, Deadlines
from tandem.messages import Submit


class Engine:
    """Which requests are here, and which of them wait."""

    def __init__(self, here=(), waiting=()):
        self.here, self.waiting = set(here), set(waiting)

    def holds(self, request_id):
        return request_id in self.here

    def waits(self, request_id):
        return request_id in self.waiting


def ask(request_id, timeout=None, age=0.0):
    params = SamplingParams(timeout=timeout)
    return Submit(request_id, "a", params, time.monotonic() - age)


def over(deadlines, engine):
    return [(one.request_id, one.queued) for one in deadlines.over(engine)]


def test_a_timeout_counts_from_the_arrival():
    deadlines = Deadlines(None)
    deadlines.add(ask("late", timeout=5, age=6))
    deadlines.add(ask("early", timeout=5, age=4))
    deadlines.add(ask("patient", age=100))
    engine = Engine({"late", "early", "patient"})
    assert over(deadlines, engine) == [("late", False)]
    assert over(deadlines, engine) == []


def test_a_queue_timeout_holds_for_those_that_wait():
    deadlines = Deadlines(3)
    for name in ("begun", "waiting"):
        deadlines.add(ask(name, timeout=100, age=4))
    assert over(deadlines, Engine({"begun", "waiting"}, {"waiting"})) == [("waiting", True)]


def test_what_has_ended_has_no_deadline():
    deadlines = Deadlines(None)
    deadlines.add(ask("gone", timeout=1, age=2))
    assert over(deadlines, Engine()) == []


def test_deadlines_of_what_has_ended_do_not_pile_up():
    deadlines = Deadlines(None)
    for number in range(10 * FEW):
        deadlines.add(ask(str(number), timeout=1000))
        assert over(deadlines, Engine({"0", str(number)})) == []
    assert len(deadlines._heap) <= FEW + 1
    assert "0" in {one.request_id for one in deadlines._heap}
