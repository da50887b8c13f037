"""genai-perf and aiperf, with the files that ship, on a real server (make test-load-tools)."""

import json

import pytest
import yaml

from tandem.serving import Endpoints
from tools.load_profiles import peers
from tools.load_profiles.profile import FOLDER, ProfileError, load_profile
from tools.load_profiles.sweep import Target

NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.fixture
def target(triton_server):
    return Target("tandem", triton_server.endpoints)


@pytest.fixture
def shortened(tmp_path, monkeypatch):
    """The files that ship with one load each and few requests."""

    def shorten(tool, name):
        config = yaml.safe_load((FOLDER / tool / f"{name}.yaml").read_text())
        if tool == "aiperf":
            swept = config["sweep"]["parameters"]
            swept |= {key: [2] for key in swept if key.startswith("phases.")}
            config["benchmark"]["phases"][-1]["requests"] = 4
        else:
            for span in config["analyze"].values():
                span |= {"start": 2, "stop": 2}
            config["perf_analyzer"]["measurement"]["num"] = 4
        path = tmp_path / tool / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(config))
        monkeypatch.setattr(peers, "FOLDER", tmp_path)

    return shorten


def exports(folder, pattern):
    return [json.loads(path.read_text()) for path in folder.glob(pattern)]


@pytest.mark.triton
@pytest.mark.load_tools
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_genai_perf(target, shortened, tmp_path, name):
    shortened("genai-perf", name)
    folder = peers.run("genai-perf", name, target, tmp_path / "out")
    found = exports(folder, "**/*_genai_perf.json")
    assert len(found) == 2  # plain and speculative
    for one in found:
        assert one["time_to_first_token"]["avg"] > 0 and one["inter_token_latency"]["avg"] > 0


@pytest.mark.triton
@pytest.mark.load_tools
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_aiperf(target, shortened, tmp_path, name):
    shortened("aiperf", name)
    folder = peers.run("aiperf", name, target, tmp_path / "out")
    found = exports(folder / "sweep", "num_draft_tokens_*/profile_export_aiperf.json")
    assert len(found) == len(load_profile(name).draft_tokens)
    for one in found:
        assert one["request_count"]["avg"] == 4 and one["request_error_rate"]["avg"] == 0
        assert one["time_to_first_token"]["avg"] > 0 and one["inter_token_latency"]["avg"] > 0


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    target = Target("tandem", Endpoints(*["127.0.0.1:9"] * 3))
    with pytest.raises(ProfileError, match="choose perf_analyzer, genai-perf or aiperf"):
        peers.run("ab", "chat", target, tmp_path)
    with pytest.raises(ProfileError, match="choose a profile that aiperf has a file for"):
        peers.run("aiperf", "mine", target, tmp_path)
    monkeypatch.setattr(peers, "ENVIRONMENT", tmp_path / "none")
    with pytest.raises(ProfileError, match=r"run tools/setup/load_tools\.sh"):
        peers.run("aiperf", "chat", target, tmp_path)
