"""What rounds are expected to take, learnt from what earlier ones have."""

import random

import numpy as np
import pytest

from tandem.drafting.between import NOBODY, BetweenPasses
from tandem.drafting.costs import EXPLORING, FIRST_PROBES, Load, RoundCosts
from tandem.drafting.stopwatch import FIRST, TOGETHER, Begun, Stopwatch
from tandem.drafting.times import TextTimes


def test_longer_texts_make_rounds_and_their_rows_take_longer():
    costs = RoundCosts({1: 1.0, 64: 1.0}, TextTimes(0.01, 0.001))
    assert costs.rounds(Load(2, 100), 8)[4] == pytest.approx(1 + 1.0 + 0.2)
    assert costs.rounds(Load(2, 200), 8)[8] == pytest.approx(1 + 2.0 + 0.8)
    assert costs.rounds(Load(2, 200), 8)[2] == pytest.approx(1 + 2.0 + 0.2)
    costs.observe_pass(Load(2, 200), 2, 1 + 2.0 + 0.2)  # just what was expected
    assert costs.rounds(Load(2), 2)[2] == pytest.approx(1.0)


def test_exploring_takes_a_small_share_of_the_time_but_at_first():
    costs = RoundCosts({1: 1.0, 64: 2.0})
    probed = []
    for now in range(2000):
        if costs.may_explore:
            costs.explored(3.0)
            probed.append(now)
        costs.observe_pass(Load(1), 1, 1.0)
    assert probed[:FIRST_PROBES] == list(range(FIRST_PROBES))
    assert 0 < 3.0 * (len(probed) - FIRST_PROBES) <= EXPLORING * 2000 + 3


class Timed:
    """Rounds on a clock of their own."""

    def __init__(self, costs):
        self.now = 0.0
        self.watch = Stopwatch(costs, lambda: self.now)
        self.learn = self.watch.learn

    def drafted(self, levels, seconds, read):
        self.now += seconds
        self.watch.drafted(levels, seconds, read)

    def ended(self, begun, rows, seconds, beside=0.0):
        self.now += seconds + beside
        self.watch.ended(begun, rows, seconds)


def test_what_rounds_take_between_their_passes_grows_with_the_requests():
    between = BetweenPasses()
    assert between.of(8) == between.besides(8) == 0.0
    between.observe(8, 2.0)
    assert between.of(8) == pytest.approx(2.0)
    assert 2.0 < between.of(16) < 4.0
    between.observe(64, 18.0, by_model=True)
    assert between.besides(64) == pytest.approx(9.0)
    assert between.besides(8) == pytest.approx(2.0)


@pytest.mark.parametrize("disturbed", [500.0, 0.0])
def test_one_value_that_was_disturbed_is_no_measure(disturbed):
    """Nor is one of nothing."""
    between, costs = BetweenPasses(), RoundCosts({1: 1.0})
    for seconds in (disturbed, 1.0, 1.0, 1.0):
        between.observe(8, 2 * seconds, by_model=True)
        costs.observe_draft(1, 0, seconds, read=100)
    assert 1.0 <= costs.reading(100) < 1.6
    between.observe(8, 1.0)
    assert 0.5 < between.besides(8) < 3.5
    for _ in range(3):
        between.observe(8, 0.0, by_model=True)
        costs.observe_draft(1, 0, 0.0, read=100)
    assert costs.reading(100) > 0.3
    assert between.besides(8) > 0.3


def test_a_draft_of_nothing_teaches_nothing_of_drafts():
    costs = RoundCosts({1: 1.0})
    costs.observe_draft(1, 4, 0.4, read=0)
    known = costs.drafts(1, 8)
    costs.observe_draft(1, 0, 50.0, read=0)
    assert costs.drafts(1, 8) == known


def test_what_is_done_behind_a_draft_is_no_plain_rounds_cost():
    """And a draft whose round ended unseen is not the next one's, in which nothing is drafted."""
    costs = RoundCosts({4: 1.0, 64: 1.0})
    rounds = Timed(costs)
    rounds.ended(Begun(Load(4), "a", False, 4), 4, 5.0)
    for _ in range(5):
        rounds.ended(Begun(Load(4), "a", False, 4), 4, 5.0, beside=2.0)
        rounds.drafted([2] * 4, 7.0, read=0)
        rounds.ended(Begun(Load(4), "a", False, 4), 4, 5.0, beside=2.0 - 7.0)
        rounds.drafted([2] * 4, 7.0, read=0)
        rounds.ended(Begun(Load(4), "a", True, 12), 12, 5.0, beside=3.0)
        rounds.ended(Begun(Load(4), "a", False, 4), 4, 5.0, beside=4.0)
    rounds.learn()
    assert costs.between.of(4) == pytest.approx(2.0)


def test_a_round_that_took_no_longer_than_its_pass_teaches_nothing():
    """Clocks are not exact: what is learnt behind it is not bound by nothing."""
    costs = RoundCosts({1: 1.0, 64: 1.0})
    rounds = Timed(costs)
    for beside in (0.0, -0.1, 2.0, 2.0):
        rounds.ended(Begun(Load(1), "a", False, 1), 1, 1.0, beside)
    rounds.learn()
    assert costs.between.of(1) == pytest.approx(2.0)


def test_what_passes_take_is_learnt_from_their_average():
    costs = RoundCosts({1: 1.0, 64: 1.0})
    for number in range(400):
        costs.observe_pass(Load(1), 4, 1.3 if number % 8 == 7 else 1.1)
    assert costs.passes(9)[4] == pytest.approx(1.125, abs=0.01)


def test_passes_of_other_sizes_teach_nothing_of_those_between():
    costs = RoundCosts({1: 1.0, 256: 256.0})
    for _ in range(400):
        costs.observe_pass(Load(2), 8, 8.0)
        costs.observe_pass(Load(2), 64, 80.0)
    assert costs.passes(64)[8] == pytest.approx(8.0, rel=0.02)
    assert costs.passes(64)[64] == pytest.approx(80.0, rel=0.02)
    assert costs.passes(64)[36] < 1.2 * 36.0


def test_times_that_vary_are_not_taken_for_what_requests_add():
    noise, costs = random.Random(1), RoundCosts({1: 1.0, 256: 256.0})
    for _ in range(4000):
        costs.observe_pass(Load(16), 16, 16.0 * noise.uniform(0.9, 1.1))
    assert costs.passes(64)[16] == pytest.approx(16.0, rel=0.04)


def test_what_passes_take_from_now_on_is_learnt_soon():
    costs = RoundCosts({1: 1.0, 64: 1.0})
    for _ in range(24):
        costs.observe_pass(Load(1), 4, 1.5)
    assert costs.passes(9)[4] > 1.2


def test_a_pass_that_was_held_up_teaches_little():
    costs = RoundCosts({1: 1.0, 64: 1.0})
    for number in range(8):
        costs.observe_pass(Load(1), 4, 1.0 if number else 100.0)
    assert costs.passes(9)[4] < 1.03


def test_what_requests_add_is_the_same_with_drafts_as_without():
    costs = RoundCosts({1: 1.0, 256: 256.0})
    for _ in range(60):
        costs.observe_pass(Load(16), 16, 24.0)
    assert costs.passes(64)[16] == pytest.approx(16.0)
    assert costs.rounds(Load(16), 64)[64] == pytest.approx(64.0 + 8.0, rel=0.01)
    assert costs.rounds(Load(32), 64)[64] == pytest.approx(
        64.0 + 8.0 * (NOBODY + 32) / (NOBODY + 16)
    )
    for _ in range(400):
        costs.observe_pass(Load(16), 64, 60.0)
    assert costs.rounds(Load(16), 64)[64] == pytest.approx(60.0, rel=0.01)
    assert 0.9 * 24.0 < costs.rounds(Load(16), 16)[16] < 24.0  # is the machine faster now?
    for _ in range(20):
        costs.observe_pass(Load(16), 16, 24.0)
    assert costs.rounds(Load(16), 16)[16] == pytest.approx(24.0, rel=0.01)


def test_few_requests_are_no_measure_of_what_many_add():
    """Part of what one request's pass takes beyond the profile is spent once a pass."""
    costs, each = RoundCosts({1: 1.0, 256: 2.0}), 0.2
    for _ in range(60):
        costs.observe_pass(Load(1), 1, 1.0 + 1.0 + each)
    expected = costs.rounds(Load(16), 16)[16] - costs.passes(16)[16]
    assert 0.6 * (1.0 + 16 * each) < expected < 1.4 * (1.0 + 16 * each)


def test_rows_that_take_less_than_was_measured_are_noticed_without_drafts_too():
    costs = RoundCosts({1: 1.0, 64: 64.0})
    for _ in range(200):
        costs.observe_pass(Load(16), 16, 8.0)
    assert costs.rounds(Load(16), 16)[16] == pytest.approx(8.0, rel=0.02)


@pytest.mark.parametrize("times", [1.8, 2.5, 4.0])
def test_what_a_draft_takes_for_many_is_learnt_soon(times):
    """It is expected to take as long as for one, for no profile says otherwise."""
    costs = RoundCosts({1: 1.0, 64: 1.0})
    for _ in range(20):
        costs.observe_draft(1, 2, 2.0, read=0)
    rounds = 0
    while costs.drafts(16, 2)[2] < 2 * 0.8 * times:
        costs.observe_draft(16, 2, 2 * times, read=0)
        rounds += 1
    assert rounds <= 60


def test_a_draft_that_grows_slower_little_by_little_is_noticed():
    costs = RoundCosts({1: 1.0, 64: 1.0})
    for seconds in [1.0] * 20 + [1.1] * 400:
        costs.observe_draft(1, 1, seconds, read=0)
    assert costs.drafts(1, 1)[1] > 1.08


@pytest.mark.parametrize(("begin", "level"), [(0.3, 0.1), (0.1, 0.1), (0.0, 0.1), (1.0, 0.05)])
def test_what_begins_a_draft_is_told_from_its_levels(begin, level):
    """By drafts of many lengths; nothing is known of them at first."""
    costs, random = RoundCosts({1: 1.0, 64: 1.0}), np.random.default_rng(1)
    for levels in random.integers(1, 9, 600).tolist():
        costs.observe_draft(1, levels, begin + level * levels, read=0)
    due = [begin + level * count for count in range(1, 9)]
    assert costs.drafts(1, 8)[1:9] == pytest.approx(due, rel=0.2)


def test_a_longer_draft_is_expected_to_begin_but_once():
    costs = RoundCosts({1: 1.0, 64: 1.0})
    for _ in range(20):
        costs.observe_draft(1, 2, 1.0, read=0)
    found = costs.drafts(1, 8)
    assert found[0] == 0
    assert found[2] == pytest.approx(1.0)
    assert 1.3 < found[4] < 1.9


def test_what_was_waited_for_between_requests_is_no_rounds_cost():
    costs = RoundCosts({1: 1.0, 64: 1.0})
    rounds = Timed(costs)
    for first in ("a", "b", "c"):
        rounds.ended(Begun(Load(1), first, False, 1), 1, 1.0, beside=10.0)
    rounds.learn()
    assert costs.between.of(1) == 0
    rounds.ended(Begun(Load(1), "c", False, 1), 1, 1.0, beside=10.0)
    rounds.learn()
    assert costs.between.of(1) == 10


def test_all_that_a_round_takes_but_its_pass_and_its_draft_is_beside_them():
    """Wherever in it: what is packed behind a draft counts as what is planned before it does."""
    costs = RoundCosts({4: 1.0, 64: 1.0})
    rounds = Timed(costs)
    for _ in range(3):
        rounds.ended(Begun(Load(4), "a", False, 4), 4, 5.0, beside=2.0)
    for _ in range(3):
        rounds.drafted([2] * 4, 7.0, read=0)
        rounds.ended(Begun(Load(4), "a", True, 12), 12, 5.0, beside=3.0)
    rounds.learn()
    assert costs.between.of(4) == pytest.approx(2.0)
    assert costs.between.besides(4) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("by_model", "learnt"),
    [([True, False], 1), ([True, False, False], 2), ([False, False], 2), ([True, True], 2)],
)
def test_the_first_pass_behind_a_draft_is_learnt_of_drafting_rounds_alone(by_model, learnt):
    """It finds in the caches what the draft has left there."""
    costs, seen = RoundCosts({1: 1.0, 64: 1.0}), []
    costs.observe_pass = lambda load, rows, seconds: seen.append(rows)
    rounds = Timed(costs)
    for drafts in by_model:
        rounds.ended(Begun(Load(1), "a", drafts, 1), 1, 1.0)
    rounds.learn()
    assert len(seen) == len(by_model)
    assert len([rows for rows in seen if rows]) == learnt


def test_what_requests_that_come_and_go_take_is_no_rounds_cost():
    """A pass in which another process is busy with a request's end, and one that reads a prompt."""
    costs = RoundCosts({8: 4.0, 16: 8.0, 64: 32.0})
    rounds = Timed(costs)
    for _ in range(100):
        for requests, rows, seconds in ((16, 16, 8.0), (15, 15, 16.0), (15, 143, 60.0)):
            rounds.ended(Begun(Load(requests), "first", False, requests), rows, seconds)
        rounds.ended(Begun(Load(16), "first", False, 16), 16, 15.0)
        rounds.ended(Begun(Load(16), "first", False, 16), 16, 8.0)
    rounds.learn()
    assert costs.rounds(Load(16), 16)[16] == pytest.approx(8.0, rel=0.05)


def test_a_draft_beside_requests_that_come_and_go_teaches_only_what_reading_takes():
    costs = RoundCosts({1: 1.0, 64: 1.0})
    rounds = Timed(costs)
    for requests, seconds, read in ((8, 1.0, 0), (8, 1.0, 0), (8, 21.0, 200), (7, 5.0, 0)):
        rounds.drafted([2] * requests, seconds, read)
        rounds.ended(Begun(Load(requests), "first", True, 3 * requests), 3 * requests, 1.0)
    rounds.ended(Begun(Load(7), "first", False, 7), 7, 1.0)  # for which nothing is drafted
    rounds.learn()
    assert costs.drafts(7, 2)[2] == pytest.approx(1.0)
    assert costs.reading(100) == pytest.approx(10.0)


def test_rounds_with_drafts_are_learnt_from_some_together_others_at_once(monkeypatch):
    seen = []
    costs = RoundCosts({1: 1.0, 4096: 1.0})
    monkeypatch.setattr(costs, "observe_pass", lambda *one: seen.append(one))
    watch = Stopwatch(costs, lambda: 0.0)

    def learnt(by_model, rounds=1):
        del seen[:]
        for _ in range(rounds):
            watch.ended(Begun(Load(1), "a", by_model, 1), 1, 1.0)
        watch.learn()
        return len(seen)

    assert learnt(by_model=True) == 1  # of the first ones each
    learnt(by_model=False, rounds=FIRST)
    assert [learnt(by_model=True) for _ in range(TOGETHER)] == [0] * (TOGETHER - 1) + [TOGETHER]
    assert learnt(by_model=True) == 0
    assert learnt(by_model=False) == 2
