"""The real perf_analyzer on a real server."""

import re
import subprocess
import sys

import pytest
import yaml
from rich.console import Console

from tandem.serving import Endpoints
from tandem.triton_http import HEALTH, OK, ask
from tandem_client import GrpcClient
from tools.load_profiles.__main__ import measure, serving
from tools.load_profiles.profile import FOLDER, ROOT, Load, ProfileError, load_profile
from tools.load_profiles.sweep import Sweep
from tools.load_profiles.target import Drafting, Target, drafting

pytestmark = pytest.mark.triton
UP_TO_16 = Drafting("draft_model", 16, False, False, False, {})
TINY = {
    "description": "tiny",
    "inputs": str(FOLDER / "inputs" / "chat.jsonl"),
    "output_tokens": [6, 12],
    "sampling": {"temperature": 0},
    "concurrency": [2],
    "request_rate": [4],
    "burst": 2,
    "requests": 4,
    "seconds": 4,
    "repeats": 1,
    "percentiles": [50, 90],
}


@pytest.fixture
def target(triton_server):
    return Target("tandem", triton_server.endpoints)


def write(folder, **values):
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY | values))
    return str(path)


@pytest.mark.parametrize("own", [False, True], ids=["a server that runs", "one of its own"])
def test_a_sweep_and_its_report(triton_server, tmp_path, own):
    names = "http", "grpc", "metrics"
    ports = {name: getattr(triton_server.endpoints, name).rpartition(":")[2] for name in names}
    command = [sys.executable, "-m", "tools.load_profiles", write(tmp_path), "--out", tmp_path]
    command += [word for name, port in ports.items() for word in (f"--{name}-port", port)]
    command += ["--set", "adaptive_speculation=false"] if own else []
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert ("Measuring a server of its own" in run.stdout) == own
    path = tmp_path / "tiny" / "report.md"
    assert f"written: {path}" in run.stdout
    text = path.read_text()
    rows = re.findall(
        r"\| (2 clients|4 requests/s), (plain|up to 16 drafted) \| (\d+) \| (\d+% of \d+)?", text
    )
    assert len(rows) == 4
    for _, how, speed, accepted in rows:
        assert int(speed) > 0 and bool(accepted) == (how != "plain")
    assert '{ key: "max_queue_size"' in text
    assert "4/4" in run.stdout  # the progress bar's end


def test_what_is_measured_is_what_was_sent(target, tmp_path):
    sweep = Sweep(load_profile(write(tmp_path)), target, UP_TO_16, tmp_path / "runs")
    for length in (0, 16):
        answers = sweep._measure(Load("request_rate", 4), length, 4, f"draft-{length}")
        assert len(answers) == 4
        assert all(6 <= sum(answer.tokens) <= 12 for answer in answers)
        assert (sum(answer.drafted for answer in answers) > 0) == (length > 0)


def test_the_server_says_how_it_drafts(target):
    parameters = {"speculative_method": "draft_model", "draft_model": "draft"}
    assert drafting(target) == UP_TO_16._replace(parameters=parameters)


def test_drafts_reach_as_far_as_the_model_of_its_own_is_set(tmp_path):
    nobody = Target("tandem", Endpoints(*["127.0.0.1:9"] * 3))
    suffix = {"speculative_method": "suffix", "num_speculative_tokens": "6"}
    path = write(tmp_path, draft_tokens=[2], request_rate=[])
    with serving(nobody, suffix, Console(quiet=True)) as found:
        text = measure(path, found, tmp_path / "out", Console(quiet=True)).read_text()
    for how in ("plain", "up to 2 drafted", "up to 6 drafted"):
        assert f"| 2 clients, {how} |" in text
    assert "by suffix, up to 6 tokens a round, no further than pays" in text
    (sent,) = (tmp_path / "out/runs/concurrency-2-draft-6-0").glob("requests.json")
    assert '"num_draft_tokens": [6]' in sent.read_text()


def test_a_refusal_is_the_servers_own_sentence(target, tmp_path):
    profile = load_profile(write(tmp_path, sampling={"temperature": -1}))
    with pytest.raises(ProfileError, match=r"warm-up failed: .*'temperature' is -1"):
        Sweep(profile, target, UP_TO_16, tmp_path / "runs").run(Console(quiet=True))


def test_a_server_that_runs_is_used(target):
    with serving(target, {}, Console(quiet=True)) as found:
        assert found is target


def test_where_none_runs_one_is_started_and_stopped():
    nobody = Target("tandem", Endpoints(*["127.0.0.1:9"] * 3))
    with (
        serving(nobody, {}, Console(quiet=True)) as found,
        GrpcClient(found.endpoints.grpc, found.model) as client,
    ):
        assert client.generate("def main():", max_tokens=4).text
    assert ask(found.endpoints.http, HEALTH).status != OK


def test_no_server_elsewhere():
    away = Target("tandem", Endpoints(*["10.255.255.1:9"] * 3)._replace(http="192.0.2.1:9"))
    with (
        pytest.raises(ProfileError, match="start it, or correct MODEL, HOST"),
        serving(away, {}, Console(quiet=True)),
    ):
        pass


def test_no_metrics_where_they_should_be(target, tmp_path):
    wrong = target._replace(endpoints=target.endpoints._replace(metrics="127.0.0.1:9"))
    with pytest.raises(ProfileError, match="correct METRICS_PORT"):
        sweep = Sweep(load_profile(write(tmp_path)), wrong, UP_TO_16, tmp_path / "runs")
        sweep.run(Console(quiet=True))
