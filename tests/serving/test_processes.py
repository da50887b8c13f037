import os
import signal
import sys
import threading
import time

import pytest

from tandem.serving.errors import ServingError
from tandem.serving.processes import start

SLEEPS = ["sleep", "60"]


def test_a_program_takes_the_place_of_what_starts_it() -> None:
    script = "import os; print(os.getpid(), os.getsid(0), os.environ['WHAT'])"
    read, write = os.pipe()
    with open(read) as said, open(write, "wb") as output:
        environment = os.environ | {"WHAT": "this"}
        with start([sys.executable, "-c", script], environment, output=output) as process:
            output.close()
            assert said.read() == f"{process.pid} {process.pid} this\n"
    assert process.returncode == 0


def test_it_ends_with_the_thread_that_started_it() -> None:
    begun, may_end = [], threading.Event()

    def run() -> None:
        begun.append(start(SLEEPS, os.environ))
        may_end.wait()

    thread = threading.Thread(target=run)
    thread.start()
    while not begun or b"sleep" not in _command(begun[0].pid):
        time.sleep(0.01)
    assert begun[0].poll() is None
    may_end.set()
    thread.join()
    assert begun[0].wait(10) == -signal.SIGTERM


def _command(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().split(b"\0")[0]


def test_nothing_is_run_between_fork_and_exec() -> None:
    """What libraries do there may end the child before it is anything, as gRPC does."""
    calls: list[str] = []
    os.register_at_fork(before=lambda: calls.append("before"))
    with start(["true"], os.environ) as process:
        pass
    assert process.returncode == 0
    assert not calls


def test_without_setpriv_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServingError, match="install util-linux"):
        start(SLEEPS, os.environ)
