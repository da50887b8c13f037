"""A process notices that it stood still, and is not misled by its own work."""

import os
import signal
import subprocess
import sys
import threading
import time
from queue import SimpleQueue

import pytest

from tandem.config import EngineConfig
from tandem.errors import EngineDeadError
from tandem.standstill import TICK_S, Standstill
from tests.engine import fake_pb_utils

fake_pb_utils.install()

from tandem import standstill, triton_model  # noqa: E402

STOPPED = """
from tandem.standstill import Standstill
with Standstill() as still:
    print("begun", flush=True)
    input()
print(still.longest)
"""


def test_a_process_that_was_stopped_knows_for_how_long():
    command = [sys.executable, "-c", STOPPED]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "begun\n"
        time.sleep(4 * TICK_S)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(4 * TICK_S)
        shown, _ = process.communicate("\n")
    assert 1.4 < float(shown) < 10


@pytest.mark.parametrize(
    ("wall", "steady", "busy", "longest"),
    [
        (0.05, 0.05, 0.0, 0.05),
        (9.0, 0.05, 0.0, 9.0),  # the machine was paused, or its clock was set
        (2.0, 2.0, 0.1, 2.0),
        (2.0, 2.0, 1.9, 0.0),  # it computed, and this thread was not let
        (-60.0, 0.05, 0.0, 0.05),
    ],
)
def test_it_is_told_by_both_clocks_and_by_what_was_done(monkeypatch, wall, steady, busy, longest):
    times, told = iter([(100.0, 50.0, 5.0), (100.0 + wall, 50.0 + steady, 5.0 + busy)]), []
    still = Standstill()

    def clocks():
        told.append(True)
        found = next(times, None)
        if found is None:
            still._over.set()
            return (100.0 + wall, 50.0 + steady, 5.0 + busy)
        return found

    monkeypatch.setattr(standstill, "_clocks", clocks)
    still._run()
    assert len(told) == 3
    assert still.longest == pytest.approx(longest)


class Service:
    """Takes its time to start."""

    stopped = threading.Event()

    def __init__(self, config, on_report, family):
        time.sleep(4 * TICK_S)

    def stop(self):
        self.stopped.set()


@pytest.mark.parametrize("given_up", [True, False])
def test_who_was_given_up_while_loading_ends(monkeypatch, tmp_path, given_up):
    monkeypatch.setattr(triton_model, "EngineService", Service)
    monkeypatch.setattr(triton_model, "GIVEN_UP_S", 0.0 if given_up else 1e9)
    Service.stopped.clear()
    config = EngineConfig(model="a")
    if given_up:
        with pytest.raises(EngineDeadError, match="load it again"):
            triton_model.start_engine(config, SimpleQueue(), tmp_path)
    else:
        assert isinstance(triton_model.start_engine(config, SimpleQueue(), tmp_path), Service)
    assert Service.stopped.is_set() == given_up
