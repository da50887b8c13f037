import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psutil
import pytest

from tandem.serving.overrides import entry
from tandem.serving.processes import IDENTITY
from tandem.triton_http import HEALTH, OK, ask
from tests.serving.models import BROKEN, CONFIG, ECHO, FORGETS, SLOW, write_model

TANDEM = [sys.executable, "-m", "tandem.cli"]
FREE_PORTS = [f"--{one}-port=0" for one in ("http", "grpc", "metrics", "control")]


@contextmanager
def serving(repository: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`tandem serve` of the echo model in a process group of its own, as a shell starts it."""
    command = [*TANDEM, "serve", "--model", "echo", "--model-repository", str(repository)]
    process = subprocess.Popen(
        [*command, *FREE_PORTS, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )
    alarm = threading.Timer(60, process.kill)  # a server that hangs must not hang the tests
    alarm.start()
    try:
        yield process
    finally:
        alarm.cancel()
        process.kill()
        process.wait()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    read = ""
    for line in process.stdout:
        read += line
        if text in line:
            return read
    raise AssertionError(f"ended before {text!r}: {read}")


def https(shown: str) -> list[str]:
    """Where clients come, and Triton's own behind it, as host:port."""
    return re.findall(r"HTTP (\S+),", shown)


def tritons_of(repository: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if str(repository) in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


def front_of(process: subprocess.Popen[str]) -> psutil.Process:
    children = psutil.Process(process.pid).children()
    return next(child for child in children if "front" in child.cmdline())


def tritonserver(process: subprocess.Popen[str]) -> psutil.Process:
    children = psutil.Process(process.pid).children()
    return next(child for child in children if IDENTITY in child.environ())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_model(tmp_path / "models", "echo", ECHO)
    return tmp_path / "models"


@pytest.mark.triton
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_prints_a_curl_line_that_works_and_stops_on_a_signal(
    repository: Path, number: signal.Signals
) -> None:
    with serving(repository) as process:
        shown = read_until(process, "Ctrl-C stops the server.")
        curl = re.search("^curl .*$", shown, re.M)
        assert curl
        answer = subprocess.run(curl[0], shell=True, capture_output=True, text=True, timeout=30)
        assert '"text_output":"def fibonacci(n):"' in answer.stdout, answer
        os.killpg(process.pid, number)
        os.killpg(process.pid, number)  # as from make, which passes its own signal on
        assert process.wait(timeout=30) == 0
    assert not tritons_of(repository)


@pytest.mark.triton
def test_what_follows_two_dashes_is_for_triton(repository: Path) -> None:
    with serving(repository, "--", "--http-restricted-api=model-repository:admin=s3") as process:
        clients, own = https(read_until(process, "Ctrl-C stops the server."))
        url = f"http://{own}/v2/repository/index"
        assert httpx2.post(url).status_code == 403
        assert httpx2.post(url, headers={"admin": "s3"}).status_code == 200
        assert httpx2.get(f"http://{clients}/v2/models/echo/ready").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


@pytest.mark.triton
def test_clients_reach_models_alone_unless_told_otherwise(repository: Path) -> None:
    body = '{"text_input": %s}' % ("[" * 200_000 + "]" * 200_000)  # by which Triton would end
    with serving(repository) as process:
        clients, own = https(read_until(process, "Ctrl-C stops the server."))
        refused = httpx2.post(f"http://{clients}/v2/models/echo/generate", content=body)
        assert (refused.status_code, "brackets" in refused.json()["error"]) == (400, True)
        assert httpx2.post(f"http://{clients}/v2/repository/index").status_code == 403
        assert httpx2.post(f"http://{own}/v2/repository/index").status_code == 200
    with serving(repository, "--no-front") as process:
        [clients] = https(read_until(process, "Ctrl-C stops the server."))
        assert httpx2.post(f"http://{clients}/v2/repository/index").status_code == 200


@pytest.mark.triton
@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGKILL, "has ended"), (signal.SIGSTOP, "does not answer")]
)
def test_a_front_that_ends_or_hangs_is_started_again(
    repository: Path, number: signal.Signals, said: str
) -> None:
    with serving(repository) as process:
        clients, _ = https(read_until(process, "Ctrl-C stops the server."))
        front_of(process).send_signal(number)
        read_until(process, f"The front {said}: it is started again.")
        deadline = time.monotonic() + 30
        while ask(clients, HEALTH).status != OK:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        front = front_of(process)
        process.kill()  # not even then does it stay
        front.wait(timeout=20)


@pytest.mark.triton
def test_a_model_that_triton_keeps_does_not_keep_it_from_ending(tmp_path: Path) -> None:
    config = CONFIG + entry("drain_timeout", "0")
    write_model(tmp_path / "models", "echo", FORGETS, config)
    with serving(tmp_path / "models") as process:
        clients, _ = https(read_until(process, "Ctrl-C stops the server."))
        url = f"http://{clients}/v2/models/echo/generate"
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(url, json={"text_input": "never"}, timeout=1)
        process.send_signal(signal.SIGTERM)
        read_until(process, "Triton does not unload a model: it is ended.")
        assert process.wait(timeout=40) == 0
    assert not tritons_of(tmp_path / "models")


@pytest.mark.triton
def test_serve_stops_while_loading(tmp_path: Path) -> None:
    slow = "import time\n" + ECHO.replace("print(", "time.sleep(60); print(")
    write_model(tmp_path / "models", "echo", slow)
    with serving(tmp_path / "models", "--log", str(tmp_path / "log")) as process:
        while (
            not (tmp_path / "log").exists() or "ModelInstance" not in (tmp_path / "log").read_text()
        ):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=40) == 0
    assert not tritons_of(tmp_path / "models")


@pytest.mark.triton
@pytest.mark.parametrize("signals", [1, 2])
def test_what_runs_may_end_first_or_not(tmp_path: Path, signals: int) -> None:
    write_model(tmp_path / "models", "echo", SLOW)
    log = tmp_path / "log"
    seconds = "8" if signals == 1 else "600"
    with serving(tmp_path / "models", "--log", str(log)) as process, ThreadPoolExecutor() as pool:
        clients, _ = https(read_until(process, "Ctrl-C stops the server."))
        url = f"http://{clients}/v2/models/echo/generate"
        answer = pool.submit(httpx2.post, url, json={"text_input": seconds}, timeout=50)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        read_until(process, "Stopping")
        if signals == 2:
            time.sleep(2)
            assert "Signal (15)" not in log.read_text()
            process.send_signal(signal.SIGINT)
            asked = time.monotonic()
        assert process.wait(timeout=40) == 0
        if signals == 1:
            assert answer.result().json()["text_output"] == seconds
            said = log.read_text()
            assert said.index("successfully unloaded 'echo'") < said.index("Signal (15)")
        else:
            assert time.monotonic() - asked < 12  # Triton would wait for 10 s and more
            assert answer.result().status_code == 503
    assert not tritons_of(tmp_path / "models")


def stub(server: psutil.Process) -> psutil.Process:
    [found] = server.children()
    return found


@pytest.mark.triton
def test_a_model_whose_process_ends_is_loaded_again(tmp_path: Path) -> None:
    """Twice, the first time with a request under way, which Triton never ends."""
    write_model(tmp_path / "models", "echo", FORGETS)
    with serving(tmp_path / "models") as process, ThreadPoolExecutor() as pool:
        clients, _ = https(read_until(process, "Ctrl-C stops the server."))
        url = f"http://{clients}/v2/models/echo/generate"
        waiting = pool.submit(httpx2.post, url, json={"text_input": "never"}, timeout=50)
        time.sleep(1)
        first = stub(tritonserver(process))
        first.kill()
        read_until(process, "The process of echo has ended: it is loaded again.")
        read_until(process, "echo serves again.")
        assert httpx2.post(url, json={"text_input": "x"}).json()["text_output"] == "x"
        second = next(one for one in tritonserver(process).children() if one != first)
        second.kill()
        read_until(process, "echo serves again.")
        assert httpx2.post(url, json={"text_input": "x"}).json()["text_output"] == "x"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=40) == 0
        assert waiting.result().status_code == 503
    assert not tritons_of(tmp_path / "models")


@pytest.mark.triton
def test_a_model_that_a_client_unloads_or_reloads_is_not_taken_for_lost(repository: Path) -> None:
    with serving(repository) as process:
        _, own = https(read_until(process, "Ctrl-C stops the server."))
        control = f"http://{own}/v2/repository/models/echo"
        (repository / "echo" / "config.pbtxt").touch()
        before = stub(tritonserver(process))
        assert httpx2.post(f"{control}/load", timeout=30).status_code == 200
        before.wait(timeout=30)
        for what in ("unload", "load", "unload"):
            assert httpx2.post(f"{control}/{what}", timeout=30).status_code == 200
        time.sleep(3)
        process.send_signal(signal.SIGTERM)
        assert "has ended" not in read_until(process, "Stopping")
        assert process.wait(timeout=30) == 0


@pytest.mark.triton
def test_serve_says_why_triton_ended(repository: Path, tmp_path: Path) -> None:
    with serving(repository, "--log", str(tmp_path / "log")) as process:
        read_until(process, "Ctrl-C stops the server.")
        tritonserver(process).kill()
        assert "killed by SIGKILL" in read_until(process, "tandem: ")
        assert process.wait(timeout=30) == 1
    assert not tritons_of(repository)


@pytest.mark.triton
def test_serve_says_why_a_model_does_not_load(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "broken", BROKEN)
    with serving(repository, "--model", "broken", "--log", str(tmp_path / "log")) as process:
        shown = read_until(process, "tandem: ")
        assert "model 'broken' failed to load: ValueError: folder 'nowhere' holds" in shown
        assert process.wait(timeout=30) == 1


def test_a_wrong_repository_is_one_sentence(tmp_path: Path) -> None:
    command = [*TANDEM, "serve", "--model-repository", str(tmp_path / "none")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert result.returncode == 1
    assert result.stderr.startswith("tandem: The model repository")
    assert result.stderr.count("\n") == 1


def test_a_port_of_triton_that_is_the_fronts_too_is_refused(repository: Path) -> None:
    """The front would ask itself."""
    command = [*TANDEM, "serve", "--model-repository", str(repository), "--model", "echo"]
    command += ["--http-port", "8123", "--control-port", "8123"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert "--control-port" in run.stderr and "a port of the front" in run.stderr


def test_help_does_not_import_torch() -> None:
    script = "import sys, tandem.cli; assert not {'torch', 'transformers'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=30).returncode == 0
