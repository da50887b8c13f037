"""The lengths of drafts that follow from what these are expected to bring and to cost."""

import itertools

import numpy as np
import pytest

from tandem.drafting.costs import Load, RoundCosts
from tandem.drafting.lengths import (
    ALIKE_GAINS,
    Option,
    Plan,
    _are_alike,
    _at_most,
    _own_lengths,
    best_lengths,
    outlook,
    tokens_share,
    with_finds,
)

FLAT = RoundCosts({1: 1.0, 64: 1.0})
STEEP = RoundCosts({1: 1.0, 64: 64.0})
FREE = [0.0] * 20  # a model's draft


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
    assert plan.least == pytest.approx((0.8**deepest + 0.8 ** (deepest + 1)) / 2)
    assert plan.joined(Option([0.99] * 8, True)) == deepest  # more levels would cost all others
    assert plan.joined(Option([0.99, plan.least, plan.least / 2], True)) == 2
    assert plan.joined(Option([plan.least / 2], True)) == 0
    nothing = best_lengths(STEEP.rounds(Load(2), 100), FREE, options(0.1, 0.1, by_model=[0, 1]))
    assert nothing.lengths == [0, 0]
    assert nothing.joined(Option([1.0] * 8, True)) == 0


def test_who_cannot_draft_keeps_nobody_from_having_one_length():
    """Where lengths of their own promise next to nothing more."""
    seconds, gains = [1 + 0.2 * rows for rows in range(100)], [0.93, 0.8, 0.35, 0.25]
    some = [Option([gain * (1 - 0.1 * place) for gain in gains], True) for place in range(4)]
    plan = best_lengths(seconds, line(0.05), [*some, Option([], False)])
    assert plan.lengths == [2, 2, 2, 2, 0]


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


@pytest.mark.parametrize("seed", range(20))
def test_beside_what_a_model_drafts_no_other_finds_yield_more(seed):
    """Against all lengths that the finds of three requests could have."""
    random = np.random.default_rng(seed)
    some = [
        Option(sorted(random.random(random.integers(0, 5)), reverse=True), index == 0)
        for index in range(4)
    ]
    seconds = [0.0, *np.cumsum(random.random(30)).tolist()]
    drafts = line(random.random())
    known = Plan([], 0.0, int(random.integers(0, 3)), 0.3)
    plan = with_finds(known, seconds, drafts, some)
    assert plan.lengths[0] == known.joined(some[0])
    assert plan.rate == pytest.approx(_rate(seconds, drafts, some, plan.lengths))
    for lengths in itertools.product(*(range(len(one.gains) + 1) for one in some[1:])):
        assert _rate(seconds, drafts, some, [plan.lengths[0], *lengths]) <= plan.rate + 1e-9
    assert plan[2:] == known[2:]


@pytest.mark.parametrize("slack", [1.0, 0.94])
def test_where_only_lookups_draft_a_known_plan_is_one_made_anew(slack):
    seconds = RoundCosts({1: 1.0, 64: 20.0}).passes(100)
    some = options(0.8, 0.7, 0.5)
    known = best_lengths(seconds, FREE, options(0.1, 0.1, 0.1), slack)
    anew = best_lengths(seconds, FREE, some, slack)
    found = with_finds(known, seconds, FREE, some, slack)
    assert found[:2] == anew[:2]
    assert sum(found.lengths) > 0


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
    assert len(set(lengths(0.25).lengths)) > 1
    short = lengths(0.07, (8, 8, 8, 1)).lengths
    assert short[3] == 1 and len(set(short[:3])) == 1
    rows = 4 + sum(alike.lengths)
    tokens = 4 + sum(
        sum(base[:count]) - 0.07 * place * count for place, count in enumerate(alike.lengths)
    )
    assert alike.rate == pytest.approx(tokens / (seconds[rows] + drafts[alike.lengths[0]]))


@pytest.mark.parametrize("seed", range(20))
def test_where_gains_are_alike_no_lengths_of_their_own_yield_much_more(seed):
    """Against all lengths that three requests could have."""
    random = np.random.default_rng(seed)
    base = np.array(sorted(random.random(5), reverse=True))
    scales = random.uniform(1, ALIKE_GAINS, 3)
    some = [Option((base * scale / ALIKE_GAINS).tolist(), True) for scale in scales]
    seconds = (1 + random.uniform(0, 0.2) * np.arange(30)).tolist()
    drafts = line(random.uniform(0, 0.1))
    plan = best_lengths(seconds, drafts, some)
    assert len(set(plan.lengths)) == 1
    for lengths in itertools.product(range(6), repeat=3):
        assert _rate(seconds, drafts, some, lengths) <= 1.02 * plan.rate


def test_gains_that_fall_otherwise_or_end_before_are_not_alike():
    """Though their sums are."""
    near = Option([0.9, 0.85, 0.8], True)
    far = Option([0.55, 0.45, 0.38, 0.33, 0.28, 0.24, 0.2], True)
    assert _are_alike([near, Option([0.89, 0.85, 0.81], True)])
    for other in (far, Option([0.85, 0.3, 0.05], True), Option([], True)):
        assert not _are_alike([near, other]) and not _are_alike([other, near])


@pytest.mark.parametrize("seed", range(40))
def test_no_lengths_of_their_own_yield_more_than_is_thought_possible(seed):
    """It is why most are not looked for."""
    random = np.random.default_rng(seed)
    gains = [sorted(random.random(random.integers(0, 9)), reverse=True) for _ in range(4)]
    some = [Option([float(gain) for gain in one], bool(one)) for one in gains]
    seconds = (1 + random.uniform(0, 0.2) * np.arange(60)).tolist()
    drafts, besides = line(random.uniform(0, 0.1)), random.uniform(0, 0.1)
    own = _own_lengths(seconds, drafts, some, 1.0, besides, 1.0)
    assert any(own.lengths)
    most = _at_most(seconds, drafts, some, besides)
    assert own.rate <= most * (1 + 1e-9)
    same = Option(max(gains, key=len), True)
    alike = _own_lengths(seconds, drafts, [same] * 3, 1.0, besides, 1.0)
    assert alike.rate == pytest.approx(_at_most(seconds, drafts, [same] * 3, besides))


def test_one_length_for_all_that_does_not_pay_is_none_at_all():
    """Where a draft pays for one of them alone, by less than lengths of their own must promise."""
    seconds, drafts = [1.0 + 0.05 * rows for rows in range(40)], [0.0, 0.24, 0.48]
    some = [Option([0.6], True), Option([0.01], True)]
    plan = best_lengths(seconds, drafts, some, margin=1.02)
    assert plan.lengths == [1, 0]
    assert plan.rate > 1.02 * 2 / seconds[2] > 2.61 / (seconds[4] + drafts[1])
