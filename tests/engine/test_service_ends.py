"""The engine's process from its start to its end, whatever kills it, and what is left then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from uuid import uuid4

import pytest

from tandem import RequestOutput, engine_process, service
from tandem.engine_process import EngineProcess
from tandem.errors import ConfigError, EngineDeadError
from tandem.leftovers import SHARED
from tandem.messages import Broken, Outputs
from tandem.service import EngineService
from tests.engine.sinks import LONG, WAIT_S, children, config_of, gone, submit, until


@pytest.fixture
def own(target: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineService]:
    """A service to be broken; it starts again at once."""
    monkeypatch.setattr(service, "FIRST_PAUSE_S", 0.0)
    one = EngineService(config_of(target))
    yield one
    one.stop()


def test_a_killed_engine_fails_its_requests_once_and_starts_again(own):
    answers = [submit(own, "t1", LONG) for _ in range(8)]
    assert answers[0].begun.wait(WAIT_S)
    killed = own.pid
    os.kill(killed, signal.SIGKILL)
    for answer in answers:
        answer.wait()
        assert answer.reason == "length" or isinstance(answer.errors[0], EngineDeadError)
    assert any(answer.errors for answer in answers)
    until(lambda: own.alive)
    assert own.pid != killed
    assert gone(killed)
    assert submit(own, "t1").wait().reason == "length"
    assert all(answer.calls_after_the_end == 0 for answer in answers)


class Closing:
    """A connection with messages left to read, and then its end."""

    def __init__(self, *messages: Outputs) -> None:
        self.messages = list(messages)

    def poll(self, timeout: float = 0.0) -> bool:
        return True

    def recv(self) -> Outputs:
        if not self.messages:
            raise EOFError
        return self.messages.pop(0)


def test_what_the_engine_sent_before_it_died_is_kept():
    one = EngineService.__new__(EngineService)
    sent = [Outputs([RequestOutput("a")]), Outputs([RequestOutput("a", finish_reason="stop")])]
    connection = Closing(*sent)
    assert one._receive(connection) == sent
    with pytest.raises(EOFError):
        one._receive(connection)


def test_who_waits_is_told_before_a_hung_engine_is_waited_for(own, monkeypatch):
    """Its end may take long: a device may hold it."""
    may_end, end = threading.Event(), own._process.end

    def late() -> int | None:
        assert may_end.wait(WAIT_S)
        return end()

    monkeypatch.setattr(own._process, "end", late)
    answer = submit(own, "t1", LONG)
    assert answer.begun.wait(WAIT_S)
    os.kill(own.pid, signal.SIGSTOP)
    (error,) = answer.wait().errors
    assert "has not shown a sign of life for 4 s: send the request again" in str(error)
    may_end.set()
    until(lambda: own.alive)
    assert answer.calls_after_the_end == 0


def test_an_engine_that_says_why_it_ends_is_not_waited_for():
    """Where a device holds it, it may say so, and neither end nor close its connection."""
    one = EngineService.__new__(EngineService)
    one._lock, one._alive, one._broken = threading.Lock(), True, ""
    one._on_report = lambda report: None  # type: ignore[method-assign]
    one._process = Stuck()  # type: ignore[assignment]
    one._process.connection = Closing(*[Broken("A rank is lost.")] * 2)  # type: ignore[attr-defined]
    one._queued = one._unread = 0.0
    one._route_until_closed()
    assert (one._broken, one._alive) == ("A rank is lost.", False)
    assert one._process.kills == 1  # type: ignore[attr-defined]


class Stuck:
    """A process that no kill ends."""

    def __init__(self) -> None:
        self.kills = 0

    def kill(self) -> None:
        self.kills += 1

    def wait(self, timeout: float) -> int:
        raise subprocess.TimeoutExpired("engine", timeout)


def test_a_process_that_no_kill_ends_is_not_waited_for_for_ever():
    one = EngineProcess.__new__(EngineProcess)
    ours, _ = Pipe()
    one.connection, one._process = ours, Stuck()  # type: ignore[assignment]
    assert one.end() is None
    assert one._process.kills  # type: ignore[attr-defined]


def test_requests_are_refused_while_the_engine_is_away(own, monkeypatch):
    monkeypatch.setattr(service, "FIRST_PAUSE_S", WAIT_S)
    os.kill(own.pid, signal.SIGKILL)
    until(lambda: not own.alive)
    with pytest.raises(EngineDeadError, match="restarting after a crash"):
        submit(own, "t1")


def test_stop_ends_the_process_and_fails_what_is_running(own):
    answers = [submit(own, "t1", LONG) for _ in range(6)]
    assert answers[0].begun.wait(WAIT_S)
    pid = own.pid
    own.stop()
    assert gone(pid)
    for answer in answers:
        assert answer.reason == "length" or "unloaded" in str(answer.wait().errors[0])
    with pytest.raises(EngineDeadError):
        submit(own, "t1")
    own.stop()


def test_stop_does_not_wait_for_an_engine_that_is_starting_again(own):
    before = children()
    os.kill(own.pid, signal.SIGKILL)
    until(lambda: bool(children() - before))
    stopping = threading.Thread(target=own.stop, daemon=True)
    stopping.start()
    stopping.join(WAIT_S)
    assert not stopping.is_alive()
    assert children() < before


PARENT = """
import sys, threading
from tandem import SamplingParams
from tandem.service import EngineService
from tests.engine.sinks import LONG, config_of, submit
one = EngineService(config_of(sys.argv[1]))
submit(one, "t1", LONG).begun.wait()
print(one.pid, flush=True)
threading.Event().wait()
"""


def test_the_engine_dies_with_its_parent(target, tmp_path):
    command = [sys.executable, "-c", PARENT, str(target)]
    around = {
        "cwd": Path(__file__).parents[2],
        "env": os.environ | {"TMPDIR": str(tmp_path)},  # a killed parent leaves an empty folder
    }
    with subprocess.Popen(command, stdout=subprocess.PIPE, **around) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.kill()
    until(lambda: gone(pid))


def test_what_is_wrong_at_the_start_is_raised(tmp_path):
    before = children()
    with pytest.raises(ConfigError, match=r"config.json does not exist"):
        EngineService(config_of(tmp_path))
    assert children() <= before


def test_memory_that_is_not_there_at_the_start_is_said(target):
    before = children()
    with pytest.raises(ConfigError, match=r"Cannot allocate memory\): .* lower kv_cache_memory"):
        EngineService(config_of(target, kv_cache_memory=1 << 50))
    assert children() <= before


@pytest.mark.parametrize(
    ("command", "said"),
    [("false", "ended with code 1 at start: read the log"), ("kill -9 $$", "code -9 .* memory")],
)
def test_a_process_that_ends_at_the_start_is_reported(target, tmp_path, command, said):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{command}\n")
    python.chmod(0o755)
    with pytest.raises(ConfigError, match=said):
        EngineService(config_of(target), python=str(python))


def test_a_start_that_hangs_fails_the_load(target, tmp_path):
    before = children()
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    with pytest.raises(ConfigError, match=r"not started within the 0\.2 s that start_timeout"):
        EngineService(config_of(target, start_timeout=0.2), python=str(python))
    assert children() <= before


def test_a_start_behind_a_crash_that_hangs_is_ended_and_tried_again(
    target, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(service, "FIRST_PAUSE_S", 0.0)
    python, told, hang = (tmp_path / name for name in ("python", "told", "hang"))
    hangs = f"echo $$ >> {told}\ntest -e {hang} && exec sleep 600\n"
    python.write_text(f'#!/bin/sh\n{hangs}exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    config = config_of(target)
    one = EngineService(config, python=str(python))
    hang.touch()
    one._config = config.model_copy(update={"start_timeout": 0.2})
    os.kill(one.pid, signal.SIGKILL)
    until(lambda: len(told.read_text().split()) > 2)
    one._config = config
    hang.unlink()
    until(lambda: one.alive)
    assert submit(one, "t1").wait().reason == "length"
    *hung, last = map(int, told.read_text().split())
    assert last == one.pid and all(map(gone, hung))
    assert "did not start again: The engine has not started within the 0.2 s" in caplog.text
    one.stop()


def test_what_vllms_processes_leave_goes_with_them(target, tmp_path):
    python, told = tmp_path / "python", tmp_path / "told"
    folder, meeting = "$VLLM_RPC_BASE_PATH", f"vllm_dist_{uuid4().hex}"
    shared = [SHARED / f"{meeting}-tp:0-[0-1]-cpushm_{rank}" for rank in range(2)]
    files = f'"{folder}/socket" "{folder}/{meeting}-.shared" "{shared[0]}" "{shared[1]}"'
    python.write_text(f'#!/bin/sh\ntouch {files}\necho "{folder}" > {told}\n')
    python.chmod(0o755)
    process = EngineProcess(config_of(target, engine="vllm"), str(python))
    until(lambda: told.exists() and told.read_text().endswith("\n"))
    folder = Path(told.read_text().strip())
    assert all(path.exists() for path in (folder / "socket", *shared))
    process.end()
    process.tidy()
    assert not any(path.exists() for path in (folder, *shared))


def test_what_the_engines_process_started_ends_with_it(target, tmp_path, monkeypatch):
    """Here each start leaves a process that would run on, as a hung rank of vLLM's does."""
    monkeypatch.setattr(engine_process, "LEFT_GRACE_S", 0.2)
    monkeypatch.setattr(service, "FIRST_PAUSE_S", 0.0)
    python, told = tmp_path / "python", tmp_path / "told"
    leaves = f"sleep 600 &\necho $! >> {told}\n"
    python.write_text(f'#!/bin/sh\n{leaves}exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    one = EngineService(config_of(target), python=str(python))
    os.kill(one.pid, signal.SIGKILL)
    until(lambda: len(told.read_text().split()) == 2 and one.alive)
    one.stop()
    assert all(gone(int(pid)) for pid in told.read_text().split())
