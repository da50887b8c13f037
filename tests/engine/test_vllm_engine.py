"""What the engine vllm does without vLLM."""

import queue
from types import SimpleNamespace

import pytest

from tandem.metrics import KV_USAGE, RUNNING, Key, Meters
from tandem.output import Streams
from tandem.vllm.engine import VllmEngine
from tandem.vllm.scheduler_meters import SchedulerMeters


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


def said(running, usage):
    """A scheduler's numbers."""
    return SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=0,
        kv_cache_usage=usage,
        prefix_cache_stats=SimpleNamespace(queries=0, hits=0),
        num_kv_fetch_reqs_by_stage={},
    )
