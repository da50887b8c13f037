"""Steps that do not end, steps that fail, and engines that crash again and again."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem import service
from tandem.errors import EngineDeadError
from tandem.runners.rank_worker import PULSE_S
from tandem.service import EngineService
from tandem.watchdog import Watchdog
from tests.engine import faulty_engine
from tests.engine.sinks import LONG, WAIT_S, config_of, gone, submit, until


class Engine:
    """What a watchdog looks at."""

    steps, idle = 0, False


@pytest.fixture
def engine() -> Engine:
    return Engine()


def looks(watchdog: Watchdog, seconds: float) -> bool:
    """What the last look says after so long a time."""
    return [watchdog.hung() for _ in range(int(seconds / PULSE_S))][-1]


def test_a_step_that_does_not_end_is_hung(engine):
    watchdog = Watchdog(engine, 10.0)
    assert not looks(watchdog, 10)
    assert looks(watchdog, 1)
    assert "10 s that step_timeout allows" in watchdog.reason


def test_many_long_steps_are_not(engine):
    watchdog = Watchdog(engine, 10.0)
    for _ in range(5):
        assert not looks(watchdog, 9)
        engine.steps += 1


def test_an_engine_without_work_is_not(engine):
    watchdog = Watchdog(engine, 10.0)
    engine.idle = True
    assert not looks(watchdog, 100)
    engine.idle = False
    assert not looks(watchdog, 9)


@pytest.fixture
def faulty(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator:
    """Starts a service whose engine is broken by a prompt."""
    monkeypatch.setattr(service, "FIRST_PAUSE_S", 0.0)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {faulty_engine.__file__} "$@"\n')
    python.chmod(0o755)
    started: list[EngineService] = []

    def start(**parameters: float) -> EngineService:
        started.append(EngineService(config_of(target, **parameters), str(python)))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.mark.parametrize(
    ("token", "step_timeout", "said"),
    [
        (faulty_engine.HANG, 2, "A step has not ended within the 2 s that step_timeout allows"),
        (faulty_engine.FAIL, 300, r"The engine failed \(MemoryError: no 3 GiB are free\)"),
    ],
)
def test_a_fault_is_said_to_all_requests_and_repaired(faulty, token, step_timeout, said):
    one = faulty(step_timeout=step_timeout)
    running = submit(one, "t1", LONG)
    assert running.begun.wait(WAIT_S)
    broken, poison = one.pid, submit(one, [token])
    for answer in (running, poison):
        (error,) = answer.wait().errors
        assert isinstance(error, EngineDeadError)
        assert re.fullmatch(f"{said}: send the request again.", str(error))
    until(lambda: one.alive and one.pid != broken)
    assert gone(broken)
    assert submit(one, "t1").wait().reason == "length"
    assert running.calls_after_the_end == poison.calls_after_the_end == 0


def test_an_engine_that_crashes_at_once_is_started_less_and_less_often(monkeypatch):
    one = EngineService.__new__(EngineService)
    one._crashes, one._launched = 0, time.monotonic()
    one._stopping, one._on_report = Stopping(), lambda report: None
    monkeypatch.setattr(EngineService, "_launch", lambda self: None)
    for _ in range(40):
        one._relaunch()
    assert one._stopping.waited[:6] == [1, 2, 4, 8, 16, 30]
    assert one._stopping.waited[-1] == service.LONGEST_PAUSE_S
    one._launched -= service.HEALTHY_S
    one._relaunch()
    assert one._stopping.waited[-1] == service.FIRST_PAUSE_S


class Stopping:
    """An event that is not set, and does not wait."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        return False
