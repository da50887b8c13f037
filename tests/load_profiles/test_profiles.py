"""The profiles that ship, and how a profile that is wrong is refused."""

import json

import pytest
import yaml

from tools.load_profiles import work
from tools.load_profiles.profile import FOLDER, ROOT, Load, ProfileError, load_profile

NAMES = ("burst", "chat", "code", "long_prompt", "summarisation")
GOOD = {
    "description": "tiny",
    "inputs": "inputs.jsonl",
    "output_tokens": [8, 16],
    "concurrency": [1, 4],
    "request_rate": [2],
}


def write(folder, **values):
    (folder / "inputs.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(GOOD | values))
    return str(path)


def of_tool(tool, name):
    return yaml.safe_load((FOLDER / tool / f"{name}.yaml").read_text())


def refusal(path):
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    return str(caught.value)


def test_these_profiles_ship():
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == list(NAMES)
    for tool in ("genai-perf", "aiperf"):
        assert sorted(path.stem for path in (FOLDER / tool).iterdir()) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_that_ships_is_whole(name):
    profile = load_profile(name)
    assert len(profile.prompts()) >= 12
    assert {load.kind for load in profile.loads} == {"concurrency", "request_rate"}


@pytest.mark.parametrize("name", NAMES)
def test_the_other_tools_files_say_the_same(name):
    """Inputs, the answers' length, the sampling, the draft lengths."""
    profile = load_profile(name)
    sampling = profile.sampling | {"ignore_eos": True}
    sampling["max_tokens"] = sum(profile.output_tokens) // 2
    genai = of_tool("genai-perf", name)["input"]
    assert ROOT / genai["file"] == profile.inputs
    assert json.loads(genai["extra"]["sampling_parameters"]) == sampling
    assert genai["output_tokens"]["mean"] == sampling["max_tokens"]
    assert genai["num_dataset_entries"] == len(profile.prompts())
    aiperf = of_tool("aiperf", name)
    body = aiperf["benchmark"]["endpoint"]["template"]["body"]
    sent = json.loads(body.replace("{{ text|tojson }}", '"a prompt"'))
    assert json.loads(sent["sampling_parameters"]) == sampling
    assert ROOT / aiperf["benchmark"]["dataset"]["path"] == profile.inputs


@pytest.mark.parametrize("name", NAMES)
def test_the_other_tools_loads_are_the_profiles(name):
    """Of the one kind that they sweep: clients, or where they arrive in bursts, rates."""
    profile = load_profile(name)
    kind = "concurrency" if profile.burst == 1 else "request_rate"
    loads = list(getattr(profile, kind))
    genai, aiperf = of_tool("genai-perf", name), of_tool("aiperf", name)
    ((swept, span),) = genai["analyze"].items()
    powers = [2**power for power in range(10) if span["start"] <= 2**power <= span["stop"]]
    assert swept == kind and powers == loads and "step" not in span
    assert genai["perf_analyzer"]["stimulus"] == {kind: loads[0]}
    phase = aiperf["benchmark"]["phases"][-1]
    assert phase["type"] == ("concurrency" if profile.burst == 1 else "gamma")
    key = "concurrency" if profile.burst == 1 else "rate"
    assert aiperf["sweep"]["parameters"] == {f"phases.profiling.{key}": loads}
    assert phase[key] == loads[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_draft_lengths_are_the_models(name):
    """And the one profile's that compares others with it."""
    assert load_profile(name).lengths(8) == ((0, 2, 4, 8) if name == "code" else (0, 8))
    for tool in ("genai-perf", "aiperf"):
        assert "num_draft_tokens" not in json.dumps(of_tool(tool, name))


def test_draft_lengths_of_a_profile(tmp_path):
    profile = load_profile(write(tmp_path, draft_tokens=[2, 6]))
    assert [profile.lengths(most) for most in (6, 12)] == [(0, 2, 6), (0, 2, 6, 12)]
    assert profile.lengths(0) == (0,)  # what never drafts is measured as it is
    said = r"drafts of 6 tokens but the model drafts at most 4: .*TOKENS=6.* draft_tokens\.$"
    with pytest.raises(ProfileError, match=said):
        profile.lengths(4)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"colour": 1}, "Unknown profile key 'colour'"),
        ({"output_tokens": [16, 8]}, "must name the least first"),
        ({"output_tokens": [0, 8]}, "'output_tokens'"),
        ({"draft_tokens": [0, 4]}, "'draft_tokens'"),
        ({"draft_tokens": [4, 2]}, "must name each value once, the smallest first"),
        ({"concurrency": [4, 1]}, "must name each value once, the smallest first"),
        ({"concurrency": [], "request_rate": []}, "name some loads"),
        ({"sampling": {"max_tokens": 3}}, "must not name max_tokens"),
        ({"percentiles": []}, "'percentiles'"),
        ({"requests": 1}, "'requests' is 1"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, values, said):
    path = write(tmp_path, **values)
    sentence = refusal(path)
    assert said in sentence and path in sentence


def test_a_profile_that_is_no_profile(tmp_path):
    assert "choose one of burst, chat, code, long_prompt, summarisation" in refusal("nothing")
    (tmp_path / "list.yaml").write_text("- a\n")
    assert "must hold keys and values" in refusal(str(tmp_path / "list.yaml"))
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    assert "is not YAML" in refusal(str(tmp_path / "broken.yaml"))


@pytest.mark.parametrize(
    "lines", ["", "plain text\n", '{"prompt": "a"}\n', '{"text": ""}\n', "3\n"]
)
def test_inputs_that_are_none(tmp_path, lines):
    profile = load_profile(write(tmp_path))
    profile.inputs.write_text(lines)
    with pytest.raises(ProfileError, match=r"inputs\.jsonl must hold"):
        profile.prompts()
    profile.inputs.unlink()
    with pytest.raises(ProfileError, match="cannot be read"):
        profile.prompts()


def test_how_much_is_sent(tmp_path):
    profile = load_profile(write(tmp_path, requests=6, seconds=5))
    assert [profile.sent(load) for load in profile.loads] == [1 + 6, 4 + 12, 10]
    assert profile.sent(Load("request_rate", 0.5)) == 6
    assert [profile.ramp(load) for load in profile.loads] == [1, 4, 0]


def test_requests_as_perf_analyzer_reads_them(tmp_path):
    profile = load_profile(write(tmp_path, sampling={"temperature": 0}))
    plain, other = (
        work.requests(profile, ["one", "two"], length, 40, "mark")["data"] for length in (0, 4)
    )
    texts = [one["text_input"][0] for one in plain]
    assert len(set(texts)) == 40  # no prefix cache knows any of them
    assert texts[2] == "# mark 2\none"
    lengths = [json.loads(one["sampling_parameters"][0])["max_tokens"] for one in plain]
    assert set(lengths) == set(range(8, 17))
    for one, same in zip(plain, other, strict=True):  # but for the drafts, the same work
        assert (one.pop("num_draft_tokens"), same.pop("num_draft_tokens")) == ([0], [4])
        assert one == same
    as_they_are = load_profile(write(tmp_path, fresh_prompts=False))
    sent = work.requests(as_they_are, ["one", "two"], 0, 3, "mark")["data"]
    assert [one["text_input"] for one in sent] == [["one"], ["two"], ["one"]]


@pytest.mark.parametrize("arrivals", ["poisson", "constant"])
@pytest.mark.parametrize("burst", [1, 3])
def test_intervals_add_up_to_the_rate(tmp_path, arrivals, burst):
    profile = load_profile(write(tmp_path, arrivals=arrivals, burst=burst, requests=30))
    gaps = work.intervals(profile, Load("request_rate", 4))
    assert len(gaps) == 30
    assert sum(gaps) == pytest.approx(1e6 * 30 / 4, abs=30)
    assert [gap for place, gap in enumerate(gaps, 1) if place % burst] == [0] * (30 - 30 // burst)
    between = set(gaps[burst - 1 :: burst])
    assert len(between) == (1 if arrivals == "constant" else 30 // burst)
