"""What a server that lives as long as its command does about what fails."""

import signal
import socket
import subprocess
import time
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from rich.console import Console

from tandem.front.door import Door
from tandem.front.grpc_front import HEALTH
from tandem.serving import (
    Endpoints,
    ServerOptions,
    ServingError,
    TritonServer,
    foreground,
    front_process,
    server,
)
from tandem.serving.foreground import interruptible
from tandem.serving.front_process import FrontProcess, front_before
from tandem.serving.ports import Ports
from tests.serving.models import STOOD_STILL, write_model

MODEL_REPOSITORY = Path(__file__).parents[2] / "model_repository"
NOBODY = Endpoints(*["127.0.0.1:1"] * 3)


def test_a_front_that_cannot_start_is_started_more_and_more_seldom(monkeypatch):
    monkeypatch.setattr(front_process, "_PAUSES_S", (0.2, 0.8))
    monkeypatch.setattr(front_process.sys, "executable", "/bin/false")
    front, starts = FrontProcess(Door()), []
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        if not starts or front.fault():
            front.start(NOBODY)
            starts.append(time.monotonic())
        time.sleep(0.01)
    front.stop()
    pauses = [later - one for one, later in pairwise(starts)]
    # From a start's beginning, which itself takes a while.
    assert pauses[0] < pauses[1] < min(pauses[2:])
    assert min(pauses[2:]) > 0.5 and max(pauses) < 1.5


@pytest.mark.triton
def test_the_terminal_says_why_triton_is_started_again(tmp_path):
    write_model(tmp_path, "paused", STOOD_STILL)
    (tmp_path / "paused" / "left").write_text("2")
    said = StringIO()
    one = TritonServer(ServerOptions(tmp_path, ("paused",), log_path=tmp_path / "log"))
    try:
        foreground._start(one, None, Console(file=said, width=1000))
    finally:
        one.stop()
    _, *again, serves = said.getvalue().splitlines()
    assert len(again) == 2
    assert all("did not run for 2.0 s (log: " in line for line in again)
    assert all(line.endswith("). It is started again.") for line in again)
    assert serves.startswith("Triton serves paused, ready after ")


def test_a_front_asks_no_proxy(monkeypatch):
    """Which knows no way to this machine itself."""
    for name in ("http_proxy", "grpc_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with front_before(NOBODY) as front:
        options = [("grpc.enable_http_proxy", 0)]
        with (
            grpc.insecure_channel(front.endpoints.grpc, options) as channel,
            pytest.raises(grpc.RpcError) as raised,
        ):
            channel.unary_unary(HEALTH)(b"", timeout=20)
    assert "127.0.0.1:1:" in raised.value.details()
    assert "127.0.0.1:9" not in raised.value.details()


def test_a_demo_asks_no_proxy(monkeypatch):
    """Here it asks a front, which has no Triton."""
    monkeypatch.setattr(foreground, "_start", lambda *_: None)
    with front_before(NOBODY) as front, socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        proxy.settimeout(0)
        started = SimpleNamespace(endpoints=front.endpoints, stop=lambda: None)
        monkeypatch.setattr(foreground, "TritonServer", lambda _: started)
        assert foreground.demo(ServerOptions(MODEL_REPOSITORY, ("tandem",)), [], None)
        with pytest.raises(BlockingIOError):  # nobody has come
            proxy.accept()


def test_a_server_that_never_answers_is_not_drained_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_GO_S", 0.5)
    one = TritonServer(ServerOptions(tmp_path, ()))
    with socket.create_server(("127.0.0.1", 0)) as mute:
        one._ports = Ports(mute.getsockname()[1], 1, 1)
        one._process = subprocess.Popen(["sleep", "60"])
        began = time.monotonic()
        one.drain()
        assert time.monotonic() - began < 15
    one.stop(grace=1)


def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path):
    one = TritonServer(ServerOptions(tmp_path, (), log_path=tmp_path / "nowhere" / "a.log"))
    with pytest.raises(ServingError, match=r"a\.log.*: choose another file"):
        one._open_log()


def test_a_log_of_our_own_is_for_its_user_alone(tmp_path):
    one = TritonServer(ServerOptions(tmp_path, ()))
    one._open_log().close()
    assert one.log_path.stat().st_mode & 0o777 == 0o600
    one.log_path.unlink()


@pytest.mark.parametrize("ignored", [True, False])
def test_a_closed_terminal_ends_what_was_not_told_to_ignore_it(ignored):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    ended = False
    try:
        with interruptible():
            signal.raise_signal(signal.SIGHUP)
    except KeyboardInterrupt:
        ended = True
    finally:
        signal.signal(signal.SIGHUP, before)
    assert ended is not ignored
