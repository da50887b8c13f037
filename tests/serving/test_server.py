import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from tandem.killing import lives
from tandem.serving import ServerOptions, ServingError, TritonServer
from tandem.serving.overrides import entry
from tandem.serving.ports import Ports, choose_ports
from tandem.serving.processes import members
from tests.serving.models import (
    BROKEN,
    CONFIG,
    ECHO,
    FORGETS,
    HANGS,
    STARTS_A_CHILD,
    STOOD_STILL,
    write_model,
)

pytestmark = pytest.mark.triton


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_model(tmp_path / "repository", "echo", ECHO)
    return tmp_path / "repository"


def echo(server: TritonServer, text: str) -> str:
    return echo_of(server, json.dumps({"text_input": text}))


def echo_of(server: TritonServer, body: str, timeout: float = 10.0) -> str:
    url = f"http://{server.endpoints.http}/v2/models/echo/generate"
    with urlopen(url, body.encode(), timeout=timeout) as response:
        return json.load(response)["text_output"]


def test_two_servers_answer_and_leave_nothing_behind(repository: Path) -> None:
    first, second = (TritonServer(ServerOptions(repository, ("echo",))) for _ in range(2))
    first.start()
    second.start()
    try:
        for server in (first, second):
            server.wait_ready(60)
            assert echo(server, "grüß dich") == "grüß dich"
            with urlopen(f"http://{server.endpoints.metrics}/metrics", timeout=10) as metrics:
                assert b'nv_inference_request_success{model="echo"' in metrics.read()
            assert "echo says hello" in server.log_path.read_text()
            assert len(members(server.identity)) >= 2  # the server and its stub
    finally:
        first.stop()
        second.stop()
    for server in (first, second):
        assert not members(server.identity)
        assert not list(Path("/dev/shm").glob(f"{server.identity}*"))
        assert not server.log_path.exists()


def test_stop_ends_processes_that_ignore_it(tmp_path: Path) -> None:
    write_model(tmp_path, "stubborn", STARTS_A_CHILD)
    with TritonServer(ServerOptions(tmp_path, ("stubborn",))) as server:
        children = members(server.identity)
        assert len(children) >= 3
    assert not [process for process in children if lives(process)]


@pytest.mark.parametrize("seconds", ["", " ", "0.5"])
def test_models_are_drained_for_as_long_as_their_configuration_says(
    tmp_path: Path, seconds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing there means the default."""
    monkeypatch.setattr("tandem.serving.server._GO_S", 0.5)
    write_model(tmp_path, "echo", FORGETS, CONFIG + entry("drain_timeout", seconds))
    with TritonServer(ServerOptions(tmp_path, ("echo",))) as server:
        if seconds == "0.5":  # which never ends
            with pytest.raises(TimeoutError):
                echo_of(server, '{"text_input": "never"}', timeout=0.5)
        begun = time.monotonic()
        assert server.drain() == (seconds != "0.5")
        assert time.monotonic() - begun < 10


def test_a_killed_server_gives_its_reason_and_is_cleaned_up(
    repository: Path, tmp_path: Path
) -> None:
    with TritonServer(ServerOptions(repository, ("echo",), log_path=tmp_path / "log")) as server:
        assert server.exit_code() is None
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        assert server.exit_code(timeout=10) == -signal.SIGKILL
        assert "killed by SIGKILL" in server.failure()
    assert not members(server.identity)


def test_a_model_that_fails_to_load_gives_the_reason(tmp_path: Path) -> None:
    write_model(tmp_path, "broken", BROKEN)
    server = TritonServer(ServerOptions(tmp_path, ("broken",), log_path=tmp_path / "log"))
    with pytest.raises(ServingError) as failure, server:
        pass
    assert server.starts == 1
    assert (
        "model 'broken' failed to load: ValueError: folder 'nowhere' holds no config.json"
        in str(failure.value)
    )
    assert "\n" not in str(failure.value)


def test_a_machine_that_stood_still_while_models_were_loaded_starts_it_again(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "paused", STOOD_STILL)
    left = tmp_path / "paused" / "left"
    left.write_text("1")
    with TritonServer(ServerOptions(tmp_path, ("paused",), log_path=tmp_path / "log")) as server:
        assert (server.starts, left.read_text()) == (2, "-1")
        identity = server.identity
    assert not members(identity)
    left.write_text("9")
    server = TritonServer(ServerOptions(tmp_path, ("paused",), log_path=tmp_path / "log"))
    with pytest.raises(ServingError, match=r"its process did not run for 2\.0 s \(log: "), server:
        pass
    assert (server.starts, left.read_text()) == (3, "6")


def test_a_start_that_hangs_is_ended_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.serving.patience.MARGIN_S", 15.0)
    write_model(tmp_path, "hangs", HANGS, CONFIG + entry("start_timeout", "1"))
    left = tmp_path / "hangs" / "left"
    left.write_text("1")
    with TritonServer(ServerOptions(tmp_path, ("hangs",), log_path=tmp_path / "log")) as server:
        assert (server.starts, left.read_text()) == (2, "-1")
        assert "does not end" in server.failed_starts[0]
        identity = server.identity
    assert not members(identity)


def test_a_start_that_hangs_each_time_is_said_and_its_log_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.serving.patience.MARGIN_S", 0.1)
    write_model(tmp_path, "hangs", HANGS, CONFIG + entry("start_timeout", "2"))
    (tmp_path / "hangs" / "left").write_text("9")
    server = TritonServer(ServerOptions(tmp_path, ("hangs",)))
    with pytest.raises(ServingError, match=r"Triton's start does not end \(log: "), server:
        pass
    assert server.starts == 3
    assert not members(server.identity)
    assert server.log_path.read_text().count(": hangs_0_0 (") == 3
    server.log_path.unlink()


def test_a_triton_that_serves_without_one_of_its_models_is_not_one_that_hangs(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.serving.patience.MARGIN_S", 4.0)
    write_model(repository, "broken", BROKEN, CONFIG + entry("start_timeout", "1"))
    write_model(repository, "works", ECHO, CONFIG + entry("start_timeout", "1"))
    options = ServerOptions(
        repository,
        ("broken", "works"),
        log_path=tmp_path / "log",
        arguments=("--exit-on-error=false",),
    )
    server = TritonServer(options)
    server.start()
    try:
        with pytest.raises(ServingError, match="was not ready after 12 s"):
            server.wait_ready(12)
        assert server.starts == 1
    finally:
        server.stop()


def test_a_port_that_takes_connections_and_answers_nothing_is_no_start_without_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.serving.patience.MARGIN_S", 4.0)
    write_model(tmp_path, "hangs", HANGS, CONFIG + entry("start_timeout", "1"))
    (tmp_path / "hangs" / "left").write_text("9")
    server = TritonServer(ServerOptions(tmp_path, ("hangs",), log_path=tmp_path / "log"))
    server.start()
    begun = time.monotonic()
    host, port = server.endpoints.http.split(":")
    try:
        with socket.create_server((host, int(port)), backlog=99), pytest.raises(ServingError):
            server.wait_ready(60)
        assert server.starts == 3
        assert time.monotonic() - begun < 45
    finally:
        server.stop()


def test_a_log_that_was_asked_for_goes_on_and_tells_of_this_start_alone(tmp_path: Path) -> None:
    write_model(tmp_path, "broken", BROKEN)
    log = tmp_path / "log"
    log.write_text("error: an older one\n")
    options = ServerOptions(tmp_path, (), log_path=log)
    with TritonServer(options) as server:
        assert server.log_begin == 20
        server._control("broken", "load")
        assert server.pid is not None
        os.kill(server.pid, signal.SIGTERM)
        assert server.exit_code(timeout=10) == 0
        assert server.failure() == f"Triton ended: exit code 0 (log: {log})."
    text = log.read_text()
    assert text.startswith("error: an older one\n")
    assert "failed to load 'broken'" in text
    with (
        pytest.raises(ServingError, match=r"holds no config\.json"),
        TritonServer(ServerOptions(tmp_path, ("broken",), log_path=log)),
    ):
        pass


@pytest.mark.parametrize(
    "argument, sentence",
    [
        ("--http-port=9", "--http-port is no further argument"),
        ("--grpc-address", "--grpc-address is no further argument"),
        ("--metrics-port=9", "--metrics-port is no further argument"),
        ("--allow-http=false", "looked after over HTTP: leave --allow-http out"),
        ("--load-model=echo", "which models are loaded by --model"),
        ("--http-restricted-api=model-repository,health:a=b", "leave health out"),
        ("--http-restricted-api health:a=b", "leave health out"),
    ],
)
def test_arguments_by_which_triton_could_not_be_looked_after_are_refused(
    repository: Path, tmp_path: Path, argument: str, sentence: str
) -> None:
    options = ServerOptions(
        repository, ("echo",), log_path=tmp_path / "log", arguments=tuple(argument.split())
    )
    with pytest.raises(ServingError, match=sentence), TritonServer(options):
        pass


def test_a_log_that_cannot_be_read_again_is_refused(repository: Path) -> None:
    read, write = os.pipe()
    try:
        log = Path(f"/dev/fd/{write}")
        with pytest.raises(ServingError, match=r"seek.*: choose another file for the log"):
            TritonServer(ServerOptions(repository, ("echo",), log_path=log)).start()
    finally:
        os.close(read)
        os.close(write)


def test_a_config_that_triton_refuses_gives_the_reason(tmp_path: Path) -> None:
    write_model(tmp_path, "echo", ECHO, config='backend: "python" nonsense: 1')
    with (
        pytest.raises(ServingError, match=r'config.pbtxt, line 1: .* no field named "nonsense"'),
        TritonServer(ServerOptions(tmp_path, ("echo",), log_path=tmp_path / "log")),
    ):
        pass


def test_a_port_in_use_is_one_sentence(repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        server = TritonServer(ServerOptions(repository, ("echo",), ports=Ports(0, port, 0)))
        with pytest.raises(ServingError, match=f"grpc port {port} .* process {os.getpid()}"):
            server.start()


def test_free_ports_are_not_given_to_others_meanwhile() -> None:
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    first, last = map(int, text.split())
    ports = choose_ports("127.0.0.1", Ports(0, 0, 0))
    assert len(set(ports)) == 3
    assert not [port for port in ports if first <= port <= last]


def test_a_port_taken_while_models_load_is_told(repository: Path, tmp_path: Path) -> None:
    server = TritonServer(ServerOptions(repository, ("echo",), log_path=tmp_path / "log"))
    try:
        server.start()
        host, port = server.endpoints.metrics.split(":")
        with (
            socket.create_server((host, int(port))),
            pytest.raises(ServingError, match=r"failed to start Metrics service.* already in use"),
        ):
            server.wait_ready(60)
    finally:
        server.stop()


def test_an_unknown_model_names_the_known_ones(repository: Path) -> None:
    server = TritonServer(ServerOptions(repository, ("missing",)))
    with pytest.raises(ServingError, match="no model 'missing': choose one of echo"):
        server.start()


def test_models_that_were_not_asked_for_stay_unloaded(repository: Path) -> None:
    write_model(repository, "broken", BROKEN)
    with TritonServer(ServerOptions(repository, ("echo",))) as server:
        assert echo(server, "still here") == "still here"


def test_the_server_ends_with_a_killed_owner(repository: Path, tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from tandem.serving import *;"
        "server = TritonServer("
        "    ServerOptions(Path(sys.argv[1]), ('echo',), log_path=Path(sys.argv[2])));"
        "server.start(); print(server.identity, flush=True); server.wait_ready(60);"
        "print('ready', flush=True); time.sleep(99)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, repository, tmp_path / "log"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    identity = owner.stdout.readline().strip()
    assert owner.stdout.readline().strip() == "ready"
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 15
    while (alive := members(identity)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive
