"""What the engine vllm does without vLLM."""

import queue
from types import SimpleNamespace

import pytest

from tandem.metrics import KV_USAGE, RUNNING, Key, Meters
from tandem.output import Streams
from tandem.vllm.engine import VllmEngine, _Streams
from tandem.vllm.scheduler_meters import SchedulerMeters
from tests.engine.builders import make_request


def test_the_loss_of_vllm_is_told_and_ends_the_wait_for_its_next_step():
    engine, told = object.__new__(VllmEngine), []
    engine.streams = Streams()
    engine._arrived = queue.SimpleQueue()
    engine._lost = ""
    engine.watch(told.append)
    engine._lose(RuntimeError("a rank has ended. More words."))
    assert engine._arrived.qsize() == 1  # or the step would wait for ever
    assert engine.step() == []
    assert told == ["vLLM's engine has ended (RuntimeError: a rank has ended)"]


@pytest.mark.parametrize("leaked", [0.0, 0.25])
def test_it_is_idle_when_vllms_scheduler_has_said_so_and_tells_what_that_said(leaked):
    engine = object.__new__(VllmEngine)
    engine.streams, engine.meters = Streams(), Meters()
    engine._arrived = queue.SimpleQueue()
    engine._scheduler = SchedulerMeters(("target",), engine.wake)
    assert engine.idle  # nothing has come
    engine._scheduler.record(said(running=1, usage=0.5), None)
    assert engine.steps == 1  # though nothing was answered: it may read a long prompt
    assert not engine.idle  # its requests are over here, not yet there
    assert engine._arrived.empty()
    engine._scheduler.record(said(running=0, usage=leaked), None)
    assert engine.step() == []  # or it would wait for ever
    assert engine.idle
    assert engine.report().gauges[Key(RUNNING)] == 0
    assert engine.report().gauges[Key(KV_USAGE, "target")] == leaked


def test_a_step_that_brings_nothing_ends_all_the_same(monkeypatch):
    """Requests' times may run out meanwhile."""
    monkeypatch.setattr("tandem.vllm.engine.LONGEST_WAIT_S", 0.01)
    engine = object.__new__(VllmEngine)
    engine._arrived = queue.SimpleQueue()
    assert engine.step() == []


def test_those_wait_that_its_scheduler_has_not_begun():
    """Whose first answer has not come may be read still."""
    scheduler = SchedulerMeters(("target",), lambda: None)
    streams = _Streams(scheduler)
    for name, arrival, priority, admitted in (
        ("answers", 1.0, 0, 1.5),
        ("last", 4.0, 0, None),
        ("first", 2.0, 0, None),
        ("urgent", 5.0, -1, None),
    ):
        request = make_request([1], priority=priority)
        request.id, request.arrival, request.admitted = name, arrival, admitted
        streams[name] = SimpleNamespace(request=request)
    for waiting, due in ((0, []), (1, ["last"]), (2, ["last", "first"]), (3, [*streams][1:])):
        scheduler.record(said(running=4 - waiting, usage=0.5, waiting=waiting), None)
        assert [name for name in streams if streams.waits(name)] == due


def said(running, usage, waiting=0):
    """A scheduler's numbers."""
    return SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        kv_cache_usage=usage,
        prefix_cache_stats=SimpleNamespace(queries=0, hits=0),
        num_kv_fetch_reqs_by_stage={},
    )
