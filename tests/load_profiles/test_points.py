"""From perf_analyzer's export to figures."""

import json
import subprocess
from pathlib import Path

import pytest

from tools.load_profiles import perf_analyzer
from tools.load_profiles.perf_analyzer import Answer, read_export
from tools.load_profiles.points import failed, measured, throughput, token_gaps
from tools.load_profiles.profile import Load, ProfileError

EXPORT = Path(__file__).parent / "export.json"  # of a real run, two of its requests
LOAD = Load("concurrency", 1)


def test_an_export_of_perf_analyzer():
    first, second = read_export(EXPORT)
    assert first.tokens == [1, 2, 1, 3, 3, 3, 1]
    assert first.arrivals[0] - first.sent == pytest.approx(0.455, abs=1e-3)
    assert first.arrivals[-1] - first.sent == pytest.approx(0.663, abs=1e-3)
    assert (first.drafted, first.accepted) == (14, 5)
    # Numbers of responses that lack an output are arbitrary in the file: the last one counts.
    assert (second.drafted, second.accepted) == (10, 2)
    assert second.sent > first.sent


def test_an_answer_that_is_cut_short_is_no_measurement(tmp_path):
    export = json.loads(EXPORT.read_text())
    (experiment,) = export["experiments"]
    experiment["requests"][0]["response_outputs"].pop()
    experiment["requests"][0]["response_timestamps"].pop()
    (tmp_path / "cut.json").write_text(json.dumps(export))
    with pytest.raises(ProfileError, match=r"for 14 tokens got 13: shorten"):
        read_export(tmp_path / "cut.json")


def test_responses_without_tokens_do_not_count(tmp_path):
    export = json.loads(EXPORT.read_text())
    request = export["experiments"][0]["requests"][0]
    request["response_outputs"].insert(0, {"num_output_tokens": 0})
    request["response_timestamps"].insert(0, request["timestamp"] + 1)
    (tmp_path / "empty.json").write_text(json.dumps(export))
    assert read_export(tmp_path / "empty.json") == read_export(EXPORT)


def test_tokens_that_arrive_together_share_the_time():
    answer = Answer(0.0, [1.0, 2.0, 2.5, 3.5], [1, 4, 1, 2], 0, 0)
    assert token_gaps(answer) == [0.25] * 4 + [0.5] + [0.5] * 2


def test_throughput_is_of_the_time_under_load():
    answers = [
        Answer(0.0, [1.0, 2.0], [1, 9], 0, 0),  # the ramp's
        Answer(1.5, [2.5, 4.0], [1, 19], 0, 0),
        Answer(3.5, [3.6, 9.0], [1, 99], 0, 0),
    ]
    assert throughput(answers, ramp=1) == pytest.approx((9 + 1) / 2)
    assert throughput(answers, ramp=0) == pytest.approx((1 + 9 + 1) / 3.5)


def test_a_point_over_two_repeats():
    ramp = Answer(0.0, [50.0, 60.0], [1, 1], 100, 100)
    repeats = [
        [ramp, Answer(60.0, [61.0, 62.0], [1, 4], 8, 3), Answer(62.0, [64.0, 65.0], [1, 2], 0, 0)],
        [ramp, Answer(60.0, [63.0, 65.0], [1, 4], 8, 1), Answer(65.0, [69.0, 70.0], [1, 2], 4, 1)],
    ]
    point = measured(LOAD, 4, repeats, 1, (50,), 2)
    assert point.tokens_per_second == [5 / 2, 5 / 5]
    assert point.speed == 1.75
    assert point.request_s == [2.5, 5.0]
    assert point.ttft == {50: 2.5}
    assert point.itl == {50: 0.5}  # of 0.25 and 0.5, four each, and of 0.5, two each
    assert point.request == {50: 4.0}
    assert (point.drafted, point.accepted, point.acceptance_rate) == (20, 5, 5 / 20)
    assert point.tokens_per_pass == 12 / (12 - 5)
    assert point.preemptions == 2


def test_without_drafts_there_is_no_acceptance_rate():
    plain = [Answer(0.0, [1.0, 2.0], [1, 1], 0, 0), Answer(2.0, [3.0, 4.0], [1, 1], 0, 0)]
    point = measured(LOAD, 0, [plain], 0, (50,), 0)
    assert (point.acceptance_rate, point.tokens_per_pass) == (None, 1.0)
    single = [Answer(0.0, [1.0], [1], 0, 0), Answer(1.0, [2.0], [1], 0, 0)]
    assert measured(LOAD, 0, [single], 0, (50,), 0).itl == {}
    assert failed(LOAD, 0, "The queue is full.").failure == "The queue is full."


def test_an_empty_export_is_told(tmp_path, monkeypatch):
    (tmp_path / "export.json").write_text("")
    ended = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: ended)
    arguments = perf_analyzer.command("tandem", "host:1", Load("concurrency", 1), 1, tmp_path)
    assert perf_analyzer.run(arguments) == "perf_analyzer left its export empty: measure again."
