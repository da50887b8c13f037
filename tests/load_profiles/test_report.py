"""The report: its sentences, its tables, its plots."""

import json

import pytest

from tools.load_profiles import plots, report
from tools.load_profiles.points import Point, failed
from tools.load_profiles.profile import Load, load_profile

MACHINE = {
    "cpu": "A CPU",
    "threads": 2,
    "instructions": "AVX512",
    "read_gb_per_s": 20,
    "python": "3.11",
    "torch": "2.13",
}


def point(load, length, *speeds):
    times = {50: 0.05, 90: 0.08, 99: 0.09}
    return Point(load, length, list(speeds), times, times, times, 10 * length, 6 * length, 72, 0)


def points():
    speeds = {(1, 0): 100, (1, 4): 200, (4, 0): 180, (4, 4): 170}
    found = [point(Load("concurrency", c), k, v, v) for (c, k), v in speeds.items()]
    rate = Load("request_rate", 8)
    return [*found, point(rate, 0, 90), failed(rate, 4, "The queue is full.")]


def test_a_report_says_it_all(tmp_path):
    path = report.write("chat", load_profile("chat"), points(), MACHINE, tmp_path)
    text = path.read_text()
    assert "# Load profile: chat" in text and "A CPU, 2 threads" in text
    assert "It stops paying at about **3.6 clients**" in text
    assert "2.00 with 1, 0.94 with 4" in text
    entry = 'parameters { key: "%s" value { string_value: "%s" } }'
    assert entry % ("speculative_disable_by_batch_size", "4") in text
    assert entry % ("num_speculative_tokens", "4") in text
    row = "| 1 client, 4 drafted | 200 (200 to 200) | 60% of 40 | 1.50 | 50.0 ms | 80.0 ms |"
    assert row in text
    assert "| 8 requests/s, 4 drafted: The queue is full. |" in text
    for kind in ("concurrency", "request_rate"):
        assert f"]({kind}.svg)" in text
        assert (tmp_path / f"{kind}.svg").stat().st_size > 1000
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {14}
    kept = json.loads((tmp_path / "points.json").read_text())
    assert len(kept) == 6 and kept[0]["tokens_per_second"] == [100, 100]


@pytest.mark.parametrize(
    ("faster", "said"),
    [(1.5, "Up to 4 clients, the most measured, it pays"), (0.9, "It pays nowhere from 1 to 4")],
)
def test_a_verdict(faster, said):
    loads = [Load("concurrency", clients) for clients in (1, 4)]
    found = [point(load, k, 100 * (faster if k else 1)) for load in loads for k in (0, 4)]
    assert report.verdict(found, 4).startswith(said)


def test_without_concurrencies_there_is_no_verdict(tmp_path):
    rates = [one for one in points() if one.load.kind == "request_rate"]
    assert report.verdict(rates, 4).startswith("Not measured")
    text = report.write("chat", load_profile("chat"), rates, MACHINE, tmp_path).read_text()
    assert "# none: no concurrency was measured" in text


def test_a_plot_shows_each_draft_length(tmp_path):
    load = Load("concurrency", 1)
    found = [point(load, length, 100) for length in (0, 2, 4, 6, 8, 10)]
    text = plots.loads(found, None, tmp_path / "plot.svg").read_text()
    assert all(plots.title(length) in text for length in (0, 2, 10))


def test_a_plot_of_nothing_but_failures_is_empty(tmp_path):
    nothing = [failed(Load("concurrency", 1), length, "No.") for length in (0, 4)]
    assert plots.loads(nothing, None, tmp_path / "plot.svg").exists()
