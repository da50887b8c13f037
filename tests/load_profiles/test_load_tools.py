"""genai-perf and aiperf, with the files that ship, on a real server (make test-load-tools)."""

import json

import pytest
import yaml

from tandem.serving import Endpoints
from tools.load_profiles import peers
from tools.load_profiles.profile import FOLDER, ProfileError, load_profile
from tools.load_profiles.sweep import Target

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
def test_genai_perf(exported):
    assert len(exported("genai-perf", "**/*_genai_perf.json")) == 2  # plain and speculative


@pytest.mark.triton
@pytest.mark.load_tools
@pytest.mark.timeout(600)
def test_aiperf(exported, name):
    found = exported("aiperf", "sweep/num_draft_tokens_*/profile_export_aiperf.json")
    assert len(found) == len(load_profile(name).draft_tokens)
    for one in found:
        assert one["request_count"]["avg"] == 4 and one["request_error_rate"]["avg"] == 0


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    target = Target("tandem", Endpoints(*["127.0.0.1:9"] * 3))
    with pytest.raises(ProfileError, match="choose perf_analyzer, genai-perf or aiperf"):
        peers.run("ab", "chat", target, tmp_path)
    with pytest.raises(ProfileError, match="choose a profile that aiperf has a file for"):
        peers.run("aiperf", "mine", target, tmp_path)
    monkeypatch.setattr(peers, "ENVIRONMENT", tmp_path / "none")
    with pytest.raises(ProfileError, match=r"run tools/setup/load_tools\.sh"):
        peers.run("aiperf", "chat", target, tmp_path)
