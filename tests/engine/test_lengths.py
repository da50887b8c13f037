"""What drafts are expected to bring and to cost, and the lengths that follow from it."""

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest

from tandem.drafting import times
from tandem.drafting.between import NOBODY, BetweenPasses
from tandem.drafting.costs import EXPLORING, FIRST_PROBES, Load, RoundCosts
from tandem.drafting.gains import PRIOR, Gains
from tandem.drafting.lengths import Option, best_lengths, outlook, tokens_share
from tandem.drafting.remembered import Known
from tandem.drafting.stopwatch import Begun, Stopwatch
from tandem.drafting.times import TextTimes, Times, profile

FLAT = RoundCosts({1: 1.0, 64: 1.0})
STEEP = RoundCosts({1: 1.0, 64: 64.0})
FREE = [0.0] * 20  # a model's draft
COUNT = 4  # tokens of the drafts that gains are learnt from


def options(*chances, by_model=(), longest=8):
    return [
        Option([chance**place for place in range(1, longest + 1)], index in by_model)
        for index, chance in enumerate(chances)
    ]


def lengths_of(costs, *chances, by_model=()):
    some = options(*chances, by_model=by_model)
    drafts = costs.drafts(max(1, len(by_model)), 8)
    return best_lengths(costs.rounds(Load(1), 100), drafts, some).lengths


def line(level, longest=8):
    """Seconds of drafts whose levels all take as long."""
    return [level * count for count in range(longest + 1)]


def learn(gains, request, times, tried, kept):
    for _ in range(times):
        gains.learn(request, COUNT, tried, kept)
    return gains.expected(request, COUNT)


def test_gains_begin_with_the_prior_and_follow_what_was_kept():
    gains, request = Gains(4), {}
    assert gains.expected(request, COUNT) == pytest.approx([PRIOR, PRIOR**2, PRIOR**3, PRIOR**4])
    assert learn(gains, request, 300, 4, [1, 2])[:2] == pytest.approx([1, 1], abs=0.03)


def test_a_request_begins_with_what_the_method_has_learnt():
    gains = Gains(COUNT)
    learn(gains, {}, 900, COUNT, [])
    assert gains.expected({}, COUNT) == pytest.approx([0] * COUNT, abs=0.05)


def test_drafts_of_other_lengths_are_told_apart():
    """A lookup that finds much is right more often."""
    gains, request = Gains(16), {}
    for _ in range(100):
        gains.learn(request, 12, 12, range(1, 13))
        gains.learn(request, 2, 2, [])
    assert gains.expected(request, 9)[8] > 0.8
    assert gains.expected(request, 3)[0] < 0.1
    assert gains.expected(request, 6)[0] == pytest.approx(PRIOR)
    assert len(gains.expected(request, 9)) == 15


def test_places_that_were_not_tried_are_better_too_where_the_others_are():
    gains, request, other = Gains(4), {}, {}
    for kept in ([1, 2, 3, 4], []) * 200:
        gains.learn(other, COUNT, 4, kept)
    usual = gains.expected({}, COUNT)
    own = learn(gains, request, 90, 1, [1])
    assert own[0] > 0.8
    assert usual[2] * 1.2 < own[2] <= own[0]


def test_what_is_known_of_a_request_fades_while_nothing_is_drafted():
    gains, request, other = Gains(2), {}, {}
    learn(gains, other, 400, 2, [1, 2])
    assert learn(gains, request, 60, 2, [])[0] < 0.45
    gains.fade(request, 200)
    assert gains.expected(request, COUNT)[0] > 0.8


def test_places_that_only_the_good_reach_look_no_better_for_it():
    """Half of the requests do badly, and their drafts are cut short."""
    gains, good, bad = Gains(4), {}, {}
    for number in range(600):
        gains.learn(good, COUNT, 4, [1, 2, 3, 4] if number % 2 else [1, 2])
        gains.learn(bad, COUNT, 2, [1, 2] if number % 4 == 0 else [])
    usual = gains.expected({}, COUNT)
    assert usual == pytest.approx([0.625, 0.625, 0.3125, 0.3125], abs=0.05)
    middling = learn(gains, {}, 200, 2, [1, 2])
    assert middling[2] == pytest.approx(0.5, abs=0.05)


def test_gains_never_rise():
    assert (np.diff(learn(Gains(3), {}, 100, 3, [3])) <= 0).all()


def test_requests_are_told_apart():
    gains, good, bad = Gains(2), {}, {}
    for _ in range(60):
        gains.learn(good, COUNT, 2, [1, 2])
        gains.learn(bad, COUNT, 2, [])
    assert gains.expected(good, COUNT)[1] > 0.7 > 0.3 > gains.expected(bad, COUNT)[0]


def profiled(monkeypatch, seconds, most, text=64):
    """By a clock that passes alone move on, and these passes: requests, rows of each, text."""
    now, passes = [0.0], []
    monkeypatch.setattr(times, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def run(requests, each, behind):
        passes.append((requests, each, behind))
        now[0] += seconds(requests, each, behind, len(passes))

    return profile(run, most, text), passes


def test_a_profile_takes_the_least_of_some_tries_and_stops_at_the_most(monkeypatch):
    found, passes = profiled(monkeypatch, lambda many, _, __, tries: 1e-3 * (many + tries % 3), 20)
    assert found.rows == {rows: pytest.approx(1e-3 * rows) for rows in (1, 2, 4, 8, 16)}
    by_rows = [many for many, each, behind in passes if each == 1 and not behind]
    assert by_rows[:15] == sorted(by_rows[:15], reverse=True)  # the first use of memory is no
    assert max(many * each for many, each, _ in passes) <= 20  # pass's time


def test_long_passes_are_profiled_but_once(monkeypatch):
    _, passes = profiled(monkeypatch, lambda *_: 1.0, 4, text=1)
    assert passes == [(4, 1, 0), (2, 1, 0), (1, 1, 0)]


@pytest.mark.parametrize(("most", "text"), [(512, 256), (64, 64), (20, 64), (2, 3), (40, 2000)])
def test_what_texts_take_is_profiled_by_tokens_and_by_the_rows_that_see_them(
    monkeypatch, most, text
):
    def seconds(requests, each, behind, _):
        return 0.01 + requests * behind * (2e-6 + 1e-6 * each)

    found, passes = profiled(monkeypatch, seconds, most, text)
    assert found.texts == pytest.approx((2e-6, 1e-6))
    assert all(each + behind <= text and many * each <= most for many, each, behind in passes)
    assert found.texts.of(4, 400, 8) == pytest.approx(400 * (2e-6 + 2 * 1e-6))


def test_what_cannot_be_profiled_of_texts_is_taken_for_nothing(monkeypatch):
    for most, text in ((1, 64), (64, 1), (64, 8)):
        assert profiled(monkeypatch, lambda *_: 1e-3, most, text)[0].texts == (0, 0)


def test_longer_texts_make_rounds_and_their_rows_take_longer():
    costs = RoundCosts({1: 1.0, 64: 1.0}, TextTimes(0.01, 0.001))
    assert costs.rounds(Load(2, 100), 8)[4] == pytest.approx(1 + 1.0 + 0.2)
    assert costs.rounds(Load(2, 200), 8)[8] == pytest.approx(1 + 2.0 + 0.8)
    assert costs.rounds(Load(2, 200), 8)[2] == pytest.approx(1 + 2.0 + 0.2)
    costs.observe_pass(Load(2, 200), 2, 1 + 2.0 + 0.2)  # just what was expected
    assert costs.rounds(Load(2), 2)[2] == pytest.approx(1.0)


def test_fewer_rows_are_expected_to_take_no_longer_than_more_did():
    times = Times({1: 1.0, 64: 2.0})
    times.observe(1, 1.8)
    slow = times.of(1)
    for _ in range(20):
        times.observe(4, 0.5)
    assert times.of(4) < 0.6 < slow
    assert times.of(1) <= times.of(4)  # although nobody has seen it since
    for _ in range(20):
        times.observe(4, 1.9 * times.of(4))
    assert 2.3 < times.of(4) <= times.of(8) <= times.of(64)
    assert times.upto(64) == sorted(times.upto(64))


def test_times_lie_on_a_line_between_sizes_and_grow_beyond():
    times = Times({1: 1.0, 9: 2.0})
    assert times.of(5) == pytest.approx(1.5)
    assert times.of(100) > times.of(20) > 2.0


@pytest.mark.parametrize("size", [1, 2, 5, 17, 18, 20, 24, 40, 3000, 9000])
def test_one_size_is_as_many_are(size):
    times = Times({1: 1.0, 8: 3.0, 64: 4.0})
    times.observe(3, 5.0)
    assert times.of(size) == pytest.approx(times.upto(size)[size])


def test_times_follow_what_is_observed_most_where_it_was():
    times = Times({1: 1.0, 64: 1.0})
    for _ in range(40):
        times.observe(8, 1.9)
    assert times.of(8) == pytest.approx(1.9, rel=0.05)
    assert 1.0 < times.of(1) < times.of(4) < times.of(8)


def test_rounds_that_read_a_prompt_too_count_for_little():
    times = Times({1: 1.0, 64: 2.0})
    for _ in range(20):
        times.observe(8, 10.0)
    assert times.of(8) < 1.6


def test_more_rows_are_never_quicker():
    times = Times({1: 1.0, 64: 2.0})
    for _ in range(100):
        times.observe(8, 2.0)
    assert (np.diff(times.upto(99)) >= 0).all()


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


def test_free_rows_are_filled_and_dear_ones_are_not():
    assert lengths_of(FLAT, 0.5) == [8]
    assert lengths_of(STEEP, 0.5) == [0]


def test_each_request_gets_what_its_chances_are_worth():
    lengths = lengths_of(RoundCosts({1: 1.0, 64: 6.0}), 0.95, 0.5, 0.01)
    assert lengths[0] == 8 > lengths[1] > lengths[2] == 0


def test_a_models_levels_are_paid_once_for_all_requests():
    costs = RoundCosts({1: 1.0, 64: 1.2})
    costs.observe_draft(1, 1, 0.7, 1)
    assert lengths_of(costs, 0.5, by_model=[0]) == [0]
    many = lengths_of(costs, *[0.8] * 8, by_model=range(8))
    assert len(set(many)) == 1
    assert many[0] > 0


def test_one_request_without_a_lookup_does_not_make_all_others_wait():
    costs = RoundCosts({1: 1.0, 64: 1.2})
    costs.observe_draft(1, 1, 0.5, 1)
    assert lengths_of(costs, *[0.9] * 7, 0.8, by_model=[7]) == [8] * 7 + [0]


def test_a_request_that_joins_a_plan_gets_what_gains_as_much():
    steep = RoundCosts({1: 1.0, 64: 20.0})
    some = options(0.8, 0.8, by_model=[0, 1])
    plan = best_lengths(steep.rounds(Load(2), 100), FREE, some)
    deepest = max(plan.lengths)
    assert plan.least == pytest.approx(0.8**deepest)
    assert plan.joined(Option([0.99] * 8, True)) == deepest  # more levels would cost all others
    assert plan.joined(Option([0.99] * 8, False)) == 8
    assert plan.joined(Option([0.99, plan.least, plan.least / 2], True)) == 2
    assert plan.joined(Option([plan.least / 2], True)) == 0
    nothing = best_lengths(STEEP.rounds(Load(2), 100), FREE, options(0.1, 0.1, by_model=[0, 1]))
    assert nothing.lengths == [0, 0]
    assert nothing.joined(Option([1.0] * 8, True)) == nothing.joined(Option([1.0], False)) == 0


def test_where_there_is_no_token_there_is_no_draft():
    some = [*options(0.9), *options(0.9, longest=3), *options(0.9, longest=0)]
    seconds = FLAT.passes(100)
    assert best_lengths(seconds, FREE, some).lengths == [8, 3, 0]
    assert outlook(seconds, 1, []).rates == [best_lengths(seconds, FREE, some[2:]).rate] == [1]


@pytest.mark.parametrize("by_model", [False, True])
@pytest.mark.parametrize("chance", [0.2, 0.5, 0.7, 0.9])
def test_a_request_alone_gets_the_length_of_its_best_rate(chance, by_model):
    costs = RoundCosts({1: 1.0, 64: 9.0})
    (option,) = options(chance, by_model=[0] if by_model else [])
    seconds, drafts = costs.passes(20), costs.drafts(1, 8)
    plan = best_lengths(seconds, drafts, [option])
    alone = outlook(seconds, 1, option.gains, drafts if by_model else None)
    assert plan.rate == pytest.approx(alone.rates[-1])
    assert plan.lengths == alone.lengths[-1:]


def test_with_fewer_tokens_at_hand_the_best_length_is_among_them():
    seconds = RoundCosts({1: 1.0, 64: 9.0}).passes(100)
    gains = options(0.8)[0].gains
    whole = outlook(seconds, 3, gains)
    for count in range(len(gains) + 1):
        alone = outlook(seconds, 3, gains[:count])
        assert (alone.lengths[-1], alone.rates[-1]) == (whole.lengths[count], whole.rates[count])


def test_with_slack_a_draft_may_be_longer_than_the_best_by_so_much():
    seconds = RoundCosts({1: 1.0, 64: 20.0}).passes(100)
    gains = options(0.8)[0].gains
    best = outlook(seconds, 1, gains)
    longer = outlook(seconds, 1, gains, slack=0.95)
    assert longer.rates == best.rates
    assert longer.lengths[-1] > best.lengths[-1]
    tokens, rows = 1 + sum(gains[: longer.lengths[-1]]), 1 + longer.lengths[-1]
    assert tokens / seconds[rows] > 0.95 * best.rates[-1]


def test_in_a_batch_there_is_no_more_slack_than_for_one_request():
    seconds = RoundCosts({1: 1.0, 64: 20.0}).passes(100)
    some = options(0.8, 0.7, 0.5)
    best, longer = (best_lengths(seconds, FREE, some, slack) for slack in (1.0, 0.94))
    assert longer.rate == best.rate
    assert sum(longer.lengths) > sum(best.lengths)
    assert 0.98 * best.rate < _rate(seconds, FREE, some, longer.lengths) < best.rate
    with_model = options(0.8, 0.7, 0.5, by_model=[2])
    assert best_lengths(seconds, line(0.1), with_model, 0.94) == best_lengths(
        seconds, line(0.1), with_model
    )


@pytest.mark.parametrize("seed", range(20))
def test_no_other_lengths_yield_more(seed):
    """Against all lengths that three requests could have."""
    random = np.random.default_rng(seed)
    some = [
        Option(sorted(random.random(random.integers(0, 5)), reverse=True), bool(by_model))
        for by_model in random.integers(0, 2, 3)
    ]
    seconds = [0.0, *np.cumsum(random.random(30)).tolist()]
    drafts = [0.0, *np.cumsum(random.random(8)).tolist()]
    plan = best_lengths(seconds, drafts, some)
    assert plan.rate == pytest.approx(_rate(seconds, drafts, some, plan.lengths))
    for lengths in itertools.product(*(range(len(one.gains) + 1) for one in some)):
        assert _rate(seconds, drafts, some, lengths) <= plan.rate + 1e-9


def _rate(seconds, drafts, some, lengths):
    tokens = sum(1 + sum(one.gains[:n]) for one, n in zip(some, lengths, strict=True))
    levels = max(n * one.by_model for one, n in zip(some, lengths, strict=True))
    return tokens / (seconds[len(some) + sum(lengths)] + drafts[levels])


def test_what_must_be_read_first_is_told_from_a_level_and_weighs_on_the_rate():
    costs = RoundCosts({1: 1.0, 64: 1.0})
    for _ in range(9):
        costs.observe_draft(1, 2, 0.2, 3)
        costs.observe_draft(1, 2, 10.2, 1000)
    assert costs.drafts(1, 2)[2] == pytest.approx(0.2)
    assert costs.reading(3) == 0
    assert 0 < costs.reading(160) * 10 == pytest.approx(costs.reading(1600))
    seconds, gains = costs.passes(20), options(0.8)[0].gains
    behind = outlook(seconds, 1, gains, line(0.1), costs.reading(1600))
    assert behind.rates[-1] < outlook(seconds, 1, gains, line(0.1)).rates[-1]


def test_what_a_round_takes_besides_its_pass_makes_longer_drafts_pay():
    costs = RoundCosts({1: 1.0, 64: 20.0})
    assert lengths_of(costs, 0.8) == [3]
    for seconds in [3.0] * 20 + [1000.0]:  # and then there was nothing to do for a while
        costs.between.observe(1, seconds)
        costs.observe_pass(Load(1), 1, 1.0)
    assert 4.0 < costs.rounds(Load(1), 1)[1] < 5.0
    assert lengths_of(costs, 0.8)[0] > 5


def test_a_draft_must_promise_more_than_none_by_a_margin():
    seconds, gains = [0.0, 1.0, 1.5], [0.6]
    assert outlook(seconds, 1, gains).lengths == [0, 1]
    assert outlook(seconds, 1, gains, margin=1.1).lengths == [0, 0]
    for by_model, length in ((True, 0), (False, 1)):
        some = [Option(gains, by_model)]
        assert best_lengths(seconds, FREE, some).lengths == [1]
        assert best_lengths(seconds, FREE, some, margin=1.1).lengths == [length]


def test_what_a_models_draft_takes_besides_is_paid_by_drafts_alone():
    costs = RoundCosts({1: 1.0, 64: 1.0})
    costs.between.observe(1, 3.0, by_model=True)
    assert costs.rounds(Load(1), 1)[1] == pytest.approx(4.0)  # as long as none went without
    for _ in range(30):
        costs.between.observe(1, 1.0)
        costs.between.observe(1, 3.0, by_model=True)
    assert costs.between.besides(1) == pytest.approx(2.0)
    seconds, some = costs.rounds(Load(1), 9), [Option([0.9], True)]
    assert seconds[1] == pytest.approx(2.0)
    assert best_lengths(seconds, FREE, some).lengths == [1]
    assert best_lengths(seconds, FREE, some, besides=costs.between.besides(1)).lengths == [0]


def test_what_rounds_take_between_their_passes_grows_with_the_requests():
    between = BetweenPasses()
    assert between.of(8) == between.besides(8) == 0.0
    between.observe(8, 2.0)
    assert between.of(8) == pytest.approx(2.0)
    assert 2.0 < between.of(16) < 4.0
    between.observe(64, 18.0, by_model=True)
    assert between.besides(64) == pytest.approx(9.0)
    assert between.besides(8) == pytest.approx(2.0)


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


def test_times_that_vary_are_not_taken_for_texts():
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


def test_texts_take_as_long_with_drafts_as_without():
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


def test_few_requests_are_no_measure_of_what_texts_take_many():
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


def test_what_a_model_reads_is_borne_by_the_tokens_to_come():
    seconds, gains, drafts = [1.0] * 20, [0.9] * 8, [0.0] * 9
    for each in (0.0, 0.1, 1.0):
        found = outlook(seconds, 1, gains, drafts, reading=each)
        tokens = 1 + sum(gains)
        assert found.rates[8] == pytest.approx(max(1.0, tokens / (1 + tokens * each)))


def test_few_that_draft_far_cost_less_than_if_all_did():
    """The deepest levels are drafted for one request."""
    seconds, drafts = [1.0] * 200, [0.0, *(0.05 + 0.1 * level for level in range(1, 9))]
    far, near = Option([0.99] * 8, True), Option([0.5, 0.0], True)
    alone = best_lengths(seconds, drafts, [far])
    among = best_lengths(seconds, drafts, [far] + [near] * 7)
    assert alone.lengths == [8]
    assert among.lengths[0] == 8
    together = 8 + 8 * 0.99 + 7 * 0.5
    assert together / (1 + drafts[8]) < among.rate < together / (1 + drafts[2])
    assert tokens_share(1) < 0.2 < 0.7 < tokens_share(32)


def test_lengths_are_the_same_for_all_where_their_own_promise_next_to_nothing_more():
    """The best of many guesses is on average too good."""
    seconds, drafts = [1.0 + 0.08 * rows for rows in range(200)], line(0.02)
    base = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]

    def lengths(apart, rooms=(8, 8, 8, 8)):
        gains = [[max(0.0, gain - apart * place) for gain in base] for place in range(4)]
        some = [Option(own[:room], True) for own, room in zip(gains, rooms, strict=True)]
        return best_lengths(seconds, drafts, some)

    alike = lengths(0.07)
    assert len(set(alike.lengths)) == 1 < alike.lengths[0]
    assert alike.joined(Option([1.0] * 8, True)) == alike.lengths[0]
    assert len(set(lengths(0.2).lengths)) > 1
    short = lengths(0.07, (8, 8, 8, 1)).lengths
    assert short[3] == 1 and len(set(short[:3])) == 1
    rows = 4 + sum(alike.lengths)
    tokens = 4 + sum(
        sum(base[:count]) - 0.07 * place * count for place, count in enumerate(alike.lengths)
    )
    assert alike.rate == pytest.approx(tokens / (seconds[rows] + drafts[alike.lengths[0]]))


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


def test_a_size_that_was_not_seen_for_long_is_learnt_sooner():
    often, seldom = Times({1: 1.0, 64: 1.0}), Times({1: 1.0, 64: 1.0})
    for _ in range(30):
        often.observe(1, 1.0)
        often.observe(64, 1.0)
        seldom.observe(1, 1.0)
    often.observe(64, 1.5)
    seldom.observe(64, 1.5)
    assert often.of(64) < 1.15 < 1.2 < seldom.of(64)


def test_what_was_waited_for_between_requests_is_no_rounds_cost():
    costs = RoundCosts({1: 1.0, 64: 1.0})
    now = iter(range(0, 1000, 10))
    watch = Stopwatch(costs, lambda: float(next(now)))
    for first in ("a", "b", "c"):
        watch.ended(Begun(Load(1), first, False, 1, watch.clock()), 1, 1.0)
    watch.learn()
    assert costs.between.of(1) == 0
    watch.ended(Begun(Load(1), "c", False, 1, watch.clock()), 1, 1.0)
    watch.learn()
    assert costs.between.of(1) == 10


@pytest.mark.parametrize(
    ("by_model", "learnt"),
    [([True, False], 1), ([True, False, False], 2), ([False, False], 2), ([True, True], 2)],
)
def test_the_first_pass_behind_a_draft_is_learnt_of_drafting_rounds_alone(by_model, learnt):
    """It finds in the caches what the draft has left there."""
    costs, seen = RoundCosts({1: 1.0, 64: 1.0}), []
    costs.observe_pass = lambda load, rows, seconds: seen.append(rows)
    watch = Stopwatch(costs, lambda: 0.0)
    for drafts in by_model:
        watch.ended(Begun(Load(1), "a", drafts, 1, 0.0), 1, 1.0)
    watch.learn()
    assert len(seen) == len(by_model)
    assert len([rows for rows in seen if rows]) == learnt


def test_what_requests_that_come_and_go_take_is_no_rounds_cost():
    """A pass in which another process is busy with a request's end, and one that reads a prompt."""
    costs = RoundCosts({8: 4.0, 16: 8.0, 64: 32.0})
    watch = Stopwatch(costs, lambda: 0.0)
    for _ in range(100):
        for requests, rows, seconds in ((16, 16, 8.0), (15, 15, 16.0), (15, 143, 60.0)):
            watch.ended(Begun(Load(requests), "first", False, requests, 0.0), rows, seconds)
        watch.ended(Begun(Load(16), "first", False, 16, 0.0), 16, 15.0)
        watch.ended(Begun(Load(16), "first", False, 16, 0.0), 16, 8.0)
    watch.learn()
    assert costs.rounds(Load(16), 16)[16] == pytest.approx(8.0, rel=0.05)


def test_a_draft_beside_requests_that_come_and_go_teaches_only_what_reading_takes():
    costs = RoundCosts({1: 1.0, 64: 1.0})
    watch = Stopwatch(costs, lambda: 0.0)
    for requests, seconds, read in ((8, 1.0, 0), (8, 1.0, 0), (8, 21.0, 200), (7, 5.0, 0)):
        watch.drafted(requests, 2, seconds, read)
        watch.ended(Begun(Load(requests), "first", True, 3 * requests, 0.0), 3 * requests, 1.0)
    watch.ended(Begun(Load(7), "first", False, 7, 0.0), 7, 1.0)  # for which nothing is drafted
    watch.learn()
    assert costs.drafts(7, 2)[2] == pytest.approx(1.0)
    assert costs.reading(100) == pytest.approx(10.0)


def test_behind_any_number_of_rounds_a_request_is_only_forgotten():
    """It may have waited for long, preempted."""
    known, gains = Known([{}]), Gains(COUNT)
    learn(gains, known.gains[0], 60, COUNT, [])
    known.fade(1)
    known.fade(10**6)
    assert gains.expected(known.gains[0], COUNT)[0] < 1


def test_only_rounds_without_a_draft_let_what_is_known_fade():
    for drafts, fades in ((0, True), (40, False)):
        known = Known([{}])
        gains = Gains(COUNT)
        learn(gains, {}, 400, COUNT, [1, 2, 3, 4])
        before = learn(gains, known.gains[0], 60, COUNT, [])[0]
        known.fade(10)
        known.drafts = drafts
        known.fade(50)
        after = gains.expected(known.gains[0], COUNT)[0]
        assert (after > before + 0.2) == fades
        assert (after == before) != fades
