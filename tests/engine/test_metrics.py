"""What is counted and timed, from the engine's steps to Triton's metrics."""

import queue
import random
import time
from pathlib import Path

import pytest

from tandem import Engine, EngineConfig, SamplingParams
from tandem.metrics import (
    ACCEPTANCE_LENGTH,
    ACCEPTANCE_RATE,
    ACCEPTED_PER_POSITION,
    ACCEPTED_TOKENS,
    BETWEEN_TOKENS,
    CATALOGUE,
    DRAFT_POSITIONS,
    DRAFT_TOKENS,
    DRAFTING,
    DRAFTS,
    EFFICIENCY,
    END_TO_END,
    FAILED,
    FINISHED,
    FIRST_TOKEN,
    FRONT_REFUSED,
    GENERATED_TOKENS,
    HEARTBEAT,
    KV_USAGE,
    LENGTH,
    MOST_EFFICIENCY,
    MOST_HELD,
    MOST_OF_STEPS,
    PREEMPTIONS,
    PREFIX_HITS,
    PREFIX_QUERIES,
    PROMPT_TOKENS,
    QUEUED,
    ROUNDS,
    RUNNING,
    UP,
    VERIFYING,
    WAITING,
    Key,
    Meters,
    Recent,
    Report,
    counted,
    merged,
    standing,
)
from tests.engine import fake_pb_utils
from tests.engine.fake_pb_utils import MetricFamily

fake_pb_utils.install()

from tandem.triton_metrics import Board  # noqa: E402
from tandem.triton_model import open_board  # noqa: E402

PROMPTS = [[5, 9, 5, 9, 5, 9, 5], list(range(3, 30))]
NOTHING = {}


@pytest.fixture
def engine(target):
    config = EngineConfig(
        model=target,
        draft_model=target,
        adaptive_speculation=False,
        num_speculative_tokens=3,
        kv_cache_memory="4MiB",
        dtype="float32",
    )
    with Engine(config) as running:
        yield running


def finish(engine, **fields):
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, **fields)
    return engine.generate(PROMPTS, params)


def test_what_an_engine_counts(engine):
    outputs = finish(engine)
    counts = engine.report().counts
    stats = [output.stats for output in outputs]
    assert counts[Key(DRAFTS)] == sum(one.rounds for one in stats) > 0
    undrafted = counts[Key(ROUNDS)] - counts[Key(DRAFTS)]
    assert 0 <= undrafted <= len(PROMPTS)  # behind a last token but one there is no room for any
    assert counts[Key(DRAFT_TOKENS)] == sum(one.drafted for one in stats)
    assert counts[Key(DRAFT_POSITIONS)] == counts[Key(DRAFT_TOKENS)]
    assert counts[Key(ACCEPTED_TOKENS)] == sum(one.accepted for one in stats) > 0
    positions = [counts.get(Key(ACCEPTED_PER_POSITION, str(at)), 0) for at in range(3)]
    assert sum(positions) == counts[Key(ACCEPTED_TOKENS)]
    assert positions == sorted(positions, reverse=True)
    assert counts[Key(PROMPT_TOKENS)] == sum(map(len, PROMPTS))
    assert counts[Key(GENERATED_TOKENS)] == 24
    assert engine.report().counts == NOTHING


def test_of_trees_the_depth_is_counted_too(target):
    config = EngineConfig(
        model=target,
        draft_model=target,
        adaptive_speculation=False,
        num_speculative_tokens=6,
        speculative_tree="3",
        kv_cache_memory="4MiB",
        dtype="float32",
    )
    with Engine(config) as engine:
        finish(engine)
        counts = engine.report().counts
    drafts, tokens, positions, accepted = (
        counts[Key(name)] for name in (DRAFTS, DRAFT_TOKENS, DRAFT_POSITIONS, ACCEPTED_TOKENS)
    )
    assert drafts < accepted <= positions < tokens


def test_what_an_engine_times(engine):
    finish(engine)
    observed = engine.report().observed
    assert len(observed[FIRST_TOKEN]) == len(observed[QUEUED]) == len(observed[END_TO_END]) == 2
    assert len(observed[DRAFTING]) <= len(observed[VERIFYING])
    assert all(value >= 0 for values in observed.values() for value in values)
    pairs = list(zip(observed[QUEUED], observed[FIRST_TOKEN], observed[END_TO_END], strict=True))
    assert all(queued <= first <= whole for queued, first, whole in pairs)
    # a gap is shared by the tokens behind it, and counts for each of them: so they add up
    between = sum(whole - first for _, first, whole in pairs)
    assert len(observed[BETWEEN_TOKENS]) == 2 * 12 - len(PROMPTS)
    assert sum(observed[BETWEEN_TOKENS]) == pytest.approx(between, rel=0.05)


def test_who_is_begun_has_waited_whatever_becomes_of_it(engine):
    name = engine.add_request(PROMPTS[0], SamplingParams(max_tokens=4))
    engine.scheduler.schedule()
    engine.abort(name)
    observed = engine.report().observed
    assert len(observed[QUEUED]) == 1
    assert FIRST_TOKEN not in observed
    assert END_TO_END not in observed


def test_how_things_stand(engine):
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    engine.add_request(PROMPTS[1], params)
    assert engine.report().gauges[Key(WAITING)] == 1
    engine.step()
    gauges = engine.report().gauges
    assert (gauges[Key(RUNNING)], gauges[Key(WAITING)]) == (1, 0)
    assert 0 < gauges[Key(KV_USAGE, "target")] == gauges[Key(KV_USAGE, "draft")] < 1


def test_prefixes_are_counted(engine):
    prompt = list(range(3, 43))
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    engine.generate(prompt, params)
    first = engine.report().counts
    assert (first[Key(PREFIX_QUERIES)], Key(PREFIX_HITS) in first) == (40, False)
    engine.generate(prompt, params)
    second = engine.report().counts
    assert second[Key(PREFIX_HITS)] == 32


def test_preemptions_are_counted(target):
    config = EngineConfig(
        model=target, kv_cache_memory="4MiB", block_size=2, dtype="float32", max_num_seqs=4
    )
    with Engine(config) as engine:
        engine.blocks._free = engine.blocks._free[:24]
        engine.blocks.num_blocks = 24
        prompts = [list(range(3 + at, 13 + at)) for at in range(4)]
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        engine.generate(prompts, params)
        counts = engine.report().counts
        assert counts[Key(PREEMPTIONS)] == engine.scheduler.num_preemptions > 0


def test_many_values_are_sampled_evenly():
    random.seed(0)
    meters = Meters()
    for value in range(10_000):
        meters.observe(VERIFYING, value)
    kept = meters.report(NOTHING).observed[VERIFYING]
    assert len(kept) == MOST_OF_STEPS
    assert 3000 < sum(kept) / len(kept) < 7000


def test_what_nobody_asks_for_does_not_pile_up():
    meters = Meters()
    for _ in range(100):
        meters.observe(VERIFYING, 1.0, times=MOST_HELD // 50)
    assert len(meters._observed[VERIFYING]) == MOST_HELD


@pytest.mark.parametrize("name", [FIRST_TOKEN, END_TO_END, QUEUED])
def test_each_request_of_a_second_counts(name):
    meters = Meters()
    for value in range(1000):
        meters.observe(name, value)
    assert meters.report(NOTHING).observed[name] == list(range(1000))


def test_reports_add_up():
    one = Report({Key(DRAFTS): 2.0}, {Key(RUNNING): 1.0}, {FIRST_TOKEN: [1.0]})
    two = Report({Key(DRAFTS): 3.0}, {Key(RUNNING): 4.0}, {FIRST_TOKEN: [2.0]})
    both = merged([one, two])
    assert both.counts == {Key(DRAFTS): 5.0}
    assert both.gauges == {Key(RUNNING): 4.0}
    assert both.observed == {FIRST_TOKEN: [1.0, 2.0]}


def test_what_an_engine_that_never_drafts_tells(target):
    with Engine(EngineConfig(model=target, kv_cache_memory="4MiB", dtype="float32")) as engine:
        finish(engine)
        counts = engine.report().counts
    assert counts[Key(ROUNDS)] == 2 * 11
    assert Recent().gauges(counts) == {
        Key(LENGTH): 0,
        Key(EFFICIENCY): 1,
        Key(MOST_EFFICIENCY): 1,
    }


def test_the_length_of_drafts_falls_where_none_are_made():
    """The other rates stay as they were: they are of drafts."""
    recent = Recent()
    drafting = {
        Key(ROUNDS): 50.0,
        Key(DRAFTS): 40.0,
        Key(DRAFT_TOKENS): 160.0,
        Key(DRAFT_POSITIONS): 160.0,
        Key(ACCEPTED_TOKENS): 80.0,
    }
    before = recent.gauges(drafting)
    assert before[Key(LENGTH)] == pytest.approx(3.2)
    assert before[Key(EFFICIENCY)] == pytest.approx(2.6)
    assert before[Key(MOST_EFFICIENCY)] == pytest.approx(4.2)
    after = recent.gauges({Key(ROUNDS): 10_000.0})
    assert after[Key(LENGTH)] < 0.01
    of_rounds = {LENGTH, EFFICIENCY, MOST_EFFICIENCY}
    assert after[Key(EFFICIENCY)] == pytest.approx(1, abs=0.01)
    assert after[Key(MOST_EFFICIENCY)] == pytest.approx(1, abs=0.01)
    assert {key: after[key] for key in after if key.name not in of_rounds} == pytest.approx(
        {key: before[key] for key in before if key.name not in of_rounds}
    )


def test_rates_of_late():
    recent = Recent()
    assert recent.gauges(NOTHING) == {}
    counts = {
        Key(ROUNDS): 10.0,
        Key(DRAFTS): 10.0,
        Key(DRAFT_TOKENS): 80.0,  # of trees
        Key(DRAFT_POSITIONS): 40.0,
        Key(ACCEPTED_TOKENS): 30.0,
    }
    gauges = recent.gauges(counts)
    assert gauges[Key(LENGTH)] == pytest.approx(8)
    assert gauges[Key(ACCEPTANCE_RATE)] == pytest.approx(0.375)
    assert gauges[Key(ACCEPTANCE_LENGTH)] == pytest.approx(4)
    assert gauges[Key(EFFICIENCY)] == pytest.approx(4)
    assert gauges[Key(MOST_EFFICIENCY)] == pytest.approx(5)
    assert recent.gauges(NOTHING) == pytest.approx(gauges)
    for _ in range(20):
        gauges = recent.gauges({Key(DRAFTS): 1000.0, Key(DRAFT_TOKENS): 4000.0})
    assert gauges[Key(ACCEPTANCE_RATE)] < 1e-3


def test_a_board_shows_what_is_put():
    reports = queue.SimpleQueue()
    reports.put(standing(True))
    board = Board("tandem", "1", reports)
    reports.put(counted(FINISHED, 2, "stop"))
    reports.put(counted(FINISHED, 1, "stop"))
    reports.put(Report({}, {}, {FIRST_TOKEN: [0.1, 0.2]}))
    board.close()
    (up,) = MetricFamily.made[UP].metrics
    assert (up.labels["model"], up.labels["version"], up.value) == ("tandem", "1", 1)
    stopped = member(FINISHED, "stop")
    assert (stopped.labels, stopped.value) == (up.labels | {"finished_reason": "stop"}, 3)
    (first,) = MetricFamily.made[FIRST_TOKEN].metrics
    assert first.observed == [0.1, 0.2]
    assert set(MetricFamily.made) >= {one.name for one in CATALOGUE}


def member(family, label):
    """Of a family that has labels."""
    (one,) = [one for one in MetricFamily.made[family].metrics if label in one.labels.values()]
    return one


def test_a_heart_beats_when_nothing_is_reported():
    before = time.time()
    board = Board("tandem", "1", queue.SimpleQueue())
    beats, end = [], time.monotonic() + 30
    while len(set(beats)) < 3:
        assert time.monotonic() < end
        (heart,) = MetricFamily.made[HEARTBEAT].metrics
        beats += [heart.value] if heart.value else []
        time.sleep(0.01)
    board.close()
    assert before <= beats[0] <= time.time()
    assert beats == sorted(beats)


def test_a_report_that_fails_does_not_end_the_board(caplog):
    reports = queue.SimpleQueue()
    board = Board("tandem", "1", reports)
    refused = Report({Key(DRAFTS): -1.0, Key(FINISHED, "length"): 2.0}, {Key(RUNNING): 3.0}, {})
    reports.put(refused)  # Triton takes no negative count
    while "could not be published" not in caplog.text:
        time.sleep(0.01)
    reports.put(counted(FINISHED, 1, "stop"))
    board.close()
    assert member(FINISHED, "stop").value == 1
    assert member(FINISHED, "length").value == 2
    (running,) = MetricFamily.made[RUNNING].metrics
    assert running.value == 3


def test_what_may_come_is_there_before_it_comes():
    """A rate sees nothing of a counter that begins at 1."""
    board = Board("tandem", "1", queue.SimpleQueue())
    reasons = {"invalid", "queue_full", "timeout", "unloaded", "engine_lost"}
    assert {member(FAILED, reason).value for reason in reasons} == {0}
    assert {member(FINISHED, reason).value for reason in ("stop", "length", "abort")} == {0}
    # but no rate of drafts, of which there are none
    assert not MetricFamily.made[ACCEPTANCE_RATE].metrics
    assert not MetricFamily.made[ACCEPTANCE_LENGTH].metrics
    board.close()


def test_each_load_has_metrics_of_its_own():
    boards = [Board("tandem", "1", queue.SimpleQueue()) for _ in range(2)]
    loads = {board._labels["load"] for board in boards}
    for board in boards:
        board.close()
    assert len(loads) == 2


def test_an_engine_that_has_ended_holds_nothing():
    gauges = standing(False, ["target", "draft"]).gauges
    held = [Key(RUNNING), Key(WAITING), Key(KV_USAGE, "target"), Key(KV_USAGE, "draft")]
    assert gauges == dict.fromkeys([Key(UP), *held], 0)


def test_a_server_without_metrics_has_no_board(monkeypatch, caplog):
    monkeypatch.setattr(MetricFamily, "refusal", "metrics are off")
    reports = queue.SimpleQueue()
    reports.put(standing(True))
    void = open_board({"model_name": "tandem", "model_version": "1"}, reports)
    assert "metrics are off" in caplog.text
    void.close()
    assert reports.empty()


def test_the_operators_table_has_every_family():
    table = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    lines = reversed(table.splitlines())  # of several tables the first
    rows = {line.split("|")[1].strip(): line for line in lines if "|" in line}
    for one in (*CATALOGUE, FRONT_REFUSED):
        assert rows[f"`{one.name}`"].startswith(f"| `{one.name}` | {one.kind} | {one.help}")


def test_names_are_those_that_prometheus_expects():
    for one in CATALOGUE:
        assert one.name.startswith("tandem_")
        assert (one.kind == "counter") == one.name.endswith("_total"), one
        seconds = one.name.removesuffix("_timestamp_seconds").endswith("_seconds")
        assert (one.kind == "histogram") == seconds, one
