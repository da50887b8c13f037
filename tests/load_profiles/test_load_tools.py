"""genai-perf and aiperf, with the files that ship, on a real server (make test-load-tools)."""

import json

import pytest
import yaml

from tandem.serving import Endpoints
from tools.load_profiles import peers
from tools.load_profiles.profile import FOLDER, ProfileError, load_profile
from tools.load_profiles.target import Drafting, Target

NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def shortened(tool, name):
    """A file that ships, with one load of each and few requests."""
    config = yaml.safe_load((FOLDER / tool / f"{name}.yaml").read_text())
    if tool == "aiperf":
        swept = config["sweep"]["parameters"]
        swept |= {key: [2] for key in swept if key.startswith("phases.")}
        config["benchmark"]["phases"][-1]["requests"] = 4
    else:
        for span in config["analyze"].values():
            span |= {"start": 2, "stop": 2}
        config["perf_analyzer"]["measurement"]["num"] = 4
    return yaml.safe_dump(config)


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def exported(triton_server, name, tmp_path, monkeypatch):
    """Runs a tool with its file for `name`; what it says of each of its runs."""

    def run(tool, pattern):
        path = tmp_path / tool / f"{name}.yaml"
        path.parent.mkdir()
        path.write_text(shortened(tool, name))
        monkeypatch.setattr(peers, "FOLDER", tmp_path)
        target = Target("tandem", triton_server.endpoints)
        folder = peers.run(tool, name, target, tmp_path / "out")
        found = [json.loads(path.read_text()) for path in folder.glob(pattern)]
        for one in found:
            assert one["time_to_first_token"]["avg"] > 0 and one["inter_token_latency"]["avg"] > 0
        return found

    return run


@pytest.mark.triton
@pytest.mark.load_tools
@pytest.mark.timeout(600)
def test_genai_perf(exported, name):
    found = exported("genai-perf", "num_draft_tokens_*/**/*_genai_perf.json")
    assert len(found) == len(load_profile(name).lengths(8))


@pytest.mark.triton
@pytest.mark.load_tools
@pytest.mark.timeout(600)
def test_aiperf(exported, name):
    found = exported("aiperf", "sweep/num_draft_tokens_*/profile_export_aiperf.json")
    assert len(found) == len(load_profile(name).lengths(8))
    for one in found:
        assert one["request_count"]["avg"] == 4 and one["request_error_rate"]["avg"] == 0


@pytest.fixture
def given(tmp_path, monkeypatch):
    """What a tool is given for profile `code` on a model that drafts up to 8 tokens, by file."""

    def run(tool):
        configs = {}
        monkeypatch.setattr(peers, "_run", lambda _, config, path: configs.update({path: config}))
        monkeypatch.setattr(
            peers, "drafting", lambda target: Drafting("suffix", 8, False, True, True, {})
        )
        monkeypatch.setattr(peers, "ENVIRONMENT", tmp_path)
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / tool).touch()
        peers.run(tool, "code", Target("tandem", Endpoints("h:1", "h:2", "h:3")), tmp_path / "out")
        return configs

    return run


def test_each_draft_length_is_a_run_of_genai_perf(given):
    configs = given("genai-perf")
    names = [path.stem for path in configs]
    assert names == [f"num_draft_tokens_{length}" for length in (0, 2, 4, 8)]
    inputs = [config["input"] for config in configs.values()]
    assert [one["extra"].pop("num_draft_tokens") for one in inputs] == [0, 2, 4, 8]
    assert inputs[0] == inputs[1] == inputs[2] and "sampling_parameters" in inputs[0]["extra"]


def test_the_draft_lengths_are_in_the_grid_of_aiperf(given):
    (config,) = given("aiperf").values()
    swept = config["sweep"]["parameters"]
    assert swept["endpoint.extra.num_draft_tokens"] == [0, 2, 4, 8]
    assert swept["phases.profiling.concurrency"] == [1, 2, 4, 8, 16]
    assert "num_draft_tokens" in config["benchmark"]["endpoint"]["extra"]  # what the grid varies


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    target = Target("tandem", Endpoints(*["127.0.0.1:9"] * 3))
    with pytest.raises(ProfileError, match="choose perf_analyzer, genai-perf or aiperf"):
        peers.run("ab", "chat", target, tmp_path)
    with pytest.raises(ProfileError, match="choose a profile that aiperf has a file for"):
        peers.run("aiperf", "mine", target, tmp_path)
    monkeypatch.setattr(peers, "ENVIRONMENT", tmp_path / "none")
    with pytest.raises(ProfileError, match=r"run tools/setup/load_tools\.sh"):
        peers.run("aiperf", "chat", target, tmp_path)
