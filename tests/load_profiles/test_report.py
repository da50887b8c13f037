"""The report: its sentences, its tables, its plots."""

import json

import pytest

from tools.load_profiles import plots, report
from tools.load_profiles.points import Point, failed
from tools.load_profiles.profile import Load, load_profile
from tools.load_profiles.target import Drafting

HOW = Drafting("suffix", 4, False, True, True, {"speculative_method": "suffix"})
MACHINE = "A CPU, 2 threads."


def point(load, length, *speeds):
    times = {50: 0.05, 90: 0.08, 99: 0.09}
    drafts = (10 * length, 6 * length, 72)
    return Point(load, length, list(speeds), [1.0] * len(speeds), times, times, times, *drafts, 0)


def points():
    speeds = {(1, 0): 100, (1, 4): 200, (4, 0): 180, (4, 4): 170}
    found = [point(Load("concurrency", c), k, v, v) for (c, k), v in speeds.items()]
    rate = Load("request_rate", 8)
    return [*found, point(rate, 0, 90), failed(rate, 4, "The queue is full.")]


def test_a_report_says_it_all(tmp_path):
    path = report.write("chat", load_profile("chat"), HOW, points(), MACHINE, tmp_path)
    text = path.read_text()
    assert "# Load profile: chat" in text and "A CPU, 2 threads" in text
    assert "drafts by suffix, up to 4 tokens a round, no further than pays." in text
    assert "It stops paying at about **3.6 clients**" in text
    assert "2.00 with 1, 0.94 with 4" in text
    entry = 'parameters { key: "%s" value { string_value: "%s" } }'
    assert entry % ("speculative_disable_by_batch_size", "4") in text
    assert entry % ("num_speculative_tokens", "4") in text
    assert entry % ("speculative_method", "suffix") in text
    row = "| 1 client, up to 4 drafted | 200 (200 to 200) | 60% of 40 | 1.50 | 50.0 ms | 80.0 ms |"
    assert row in text
    assert "| 8 requests/s, up to 4 drafted: The queue is full. |" in text
    for kind in ("concurrency", "request_rate"):
        assert f"]({kind}.svg)" in text
        assert (tmp_path / f"{kind}.svg").stat().st_size > 1000
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {14}
    kept = json.loads((tmp_path / "points.json").read_text())
    assert len(kept) == 6 and kept[0]["tokens_per_second"] == [100, 100]


@pytest.mark.parametrize(
    ("faster", "said"),
    [
        (1.5, "With 4 clients, the most measured, it still pays"),
        (0.9, "It pays nowhere from 1 to 4"),
    ],
)
def test_a_verdict(faster, said):
    loads = [Load("concurrency", clients) for clients in (1, 4)]
    found = [point(load, k, 100 * (faster if k else 1)) for load in loads for k in (0, 4)]
    assert report.verdict(found, HOW, 4).startswith(said)


def test_where_nothing_could_be_compared_there_is_no_verdict(tmp_path):
    rates = [one for one in points() if one.load.kind == "request_rate"][:1]
    assert report.verdict(rates, HOW, 4).startswith("Not measured")
    text = report.write("chat", load_profile("chat"), HOW, rates, MACHINE, tmp_path).read_text()
    assert "# none: nothing could be compared" in text


def test_what_rates_cannot_say_is_said(tmp_path):
    rates = [point(Load("request_rate", 8), length, 90) for length in (0, 4)]
    rates[1] = rates[1]._replace(request_s=[0.5])
    both = load_profile("burst")
    for concurrency, said in ((both.concurrency, False), ((), True)):
        profile = both.model_copy(update={"concurrency": concurrency})
        text = report.write("burst", profile, HOW, rates, MACHINE, tmp_path).read_text()
        assert "With 8 requests/s, the most measured, it still pays" in text
        assert ("Name a `concurrency` for these lines" in text) == said


def test_each_plot_shows_its_own_crossover(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "loads", lambda of, crossing, *others: drawn.append(crossing))
    rates = {(2, 0): 1.0, (2, 4): 0.5, (8, 0): 1.0, (8, 4): 1.0}
    found = points()[:4]
    for (rate, length), seconds in rates.items():
        one = point(Load("request_rate", rate), length, 90)
        found.append(one._replace(request_s=[seconds]))
    report.write("chat", load_profile("chat"), HOW, found, MACHINE, tmp_path)
    assert [round(value, 1) for value in drawn] == [3.6, 7.7]
    plain = Drafting("none", 0, False, True, False, {})
    report.write("chat", load_profile("chat"), plain, found[:1], MACHINE, tmp_path)
    assert drawn[2:] == [None]


def test_a_tree_is_measured_in_nodes(tmp_path):
    tree = HOW._replace(most=12, tree=True, adaptive=False)
    found = [point(Load("concurrency", 1), length, 90 + length) for length in (0, 12)]
    found[1] = found[1]._replace(accepted=30)
    text = report.write("chat", load_profile("chat"), tree, found, MACHINE, tmp_path).read_text()
    assert "a tree of up to 12 nodes a round, as far as it may" in text
    assert "| 1 client, up to 12 nodes |" in text and "12 drafted" not in text


def test_plain_decoding_alone(tmp_path):
    plain = Drafting("none", 0, False, True, False, {})
    found = [point(Load("concurrency", clients), 0, 90) for clients in (1, 2)]
    text = report.write("chat", load_profile("chat"), plain, found, MACHINE, tmp_path).read_text()
    assert "no speculative_method: what follows is plain decoding alone" in text
    assert '"speculative' not in text and "| 1 client, plain |" in text


@pytest.mark.parametrize("remembers", [True, False])
def test_whether_answers_are_remembered_is_said(tmp_path, remembers):
    """For prompts come again: 24 of them."""
    said = "most answers were known" if remembers else "each request's own text alone"
    how, profile = HOW._replace(remembers=remembers), load_profile("chat")

    def written(how, profile=profile):
        return report.write("chat", profile, how, points(), MACHINE, tmp_path).read_text()

    text = written(how)
    sent = sum(profile.sent(load) for load in profile.loads) * 2 * profile.repeats / 24
    assert said in text
    assert f"each of 24 prompts was sent {sent:.0f} times" in text.replace("\n", " ")
    assert "each of" not in written(how._replace(method="ngram"))
    many = tmp_path / "many.jsonl"
    many.write_text("\n".join(json.dumps({"text": str(one)}) for one in range(10_000)))
    assert "each of" not in written(how, profile.model_copy(update={"inputs": many}))


def test_a_plot_shows_each_draft_length(tmp_path):
    load = Load("concurrency", 1)
    found = [point(load, length, 100) for length in (0, 2, 4, 6, 8, 10)]
    text = plots.loads(found, None, HOW.title, tmp_path / "plot.svg").read_text()
    assert all(said in text for said in ("plain", "up to 2 drafted", "up to 10 drafted"))


def test_a_plot_of_nothing_but_failures_is_empty(tmp_path):
    nothing = [failed(Load("concurrency", 1), length, "No.") for length in (0, 4)]
    assert plots.loads(nothing, None, HOW.title, tmp_path / "plot.svg").exists()
