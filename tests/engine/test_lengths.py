"""What drafts are expected to bring and to cost, and the lengths that follow from it."""

import numpy as np
import pytest

from tandem.drafting.costs import EXPLORING, RoundCosts, Times, profile
from tandem.drafting.gains import PRIOR, Gains
from tandem.drafting.lengths import Option, best_lengths, rate

FLAT = RoundCosts({1: 1.0, 64: 1.0})
STEEP = RoundCosts({1: 1.0, 64: 64.0})


def option(chance, length, by_model=False):
    return Option(chance ** np.arange(1.0, length + 1), by_model)


def test_gains_begin_with_the_prior_and_follow_what_was_kept():
    gains = Gains(4)
    assert gains.expected(4) == pytest.approx([PRIOR, PRIOR**2, PRIOR**3, PRIOR**4])
    for _ in range(300):
        gains.update(4, [1, 2])
    assert gains.expected(4) == pytest.approx([1, 1, 0, 0], abs=0.03)


def test_a_request_begins_with_what_the_method_has_learnt():
    method = Gains(3)
    for _ in range(300):
        method.update(3, [])
    assert Gains(3, method).expected(3) == pytest.approx([0, 0, 0], abs=0.02)


def test_places_that_were_not_tried_follow_their_neighbours():
    method = Gains(4)
    for kept in ([1, 2, 3, 4], []):
        for _ in range(200):
            method.update(4, kept)
    own = Gains(4, method)
    before = own.expected(4)
    for _ in range(50):
        own.update(1, [1])
    after = own.expected(4)
    assert after[0] > 0.8
    assert after[3] == pytest.approx(before[3] * after[0] / before[0], rel=1e-6)


def test_what_is_known_of_a_request_fades_while_nothing_is_drafted():
    own = Gains(2, Gains(2))
    for _ in range(30):
        own.update(2, [])
    assert own.expected(1)[0] < 0.3
    for _ in range(200):
        own.update(0, [])
    assert own.expected(1)[0] == pytest.approx(PRIOR, abs=0.01)


def test_gains_never_rise():
    tree = Gains(3)
    for _ in range(100):
        tree.update(3, [3])
    assert (np.diff(tree.expected(3)) <= 0).all()


def test_a_profile_takes_the_least_of_some_tries_and_stops_at_the_most():
    calls = []
    found = profile(calls.append, 20)
    assert list(found) == [1, 2, 4, 8, 16]
    assert calls.count(8) > 1
    assert all(seconds >= 0 for seconds in found.values())


def test_times_lie_on_a_line_between_sizes_and_grow_beyond():
    times = Times({1: 1.0, 9: 2.0})
    assert times.at(5) == pytest.approx(1.5)
    assert times.at(100) > times.at(20) > 2.0


def test_times_follow_what_is_observed_most_where_it_was():
    times = Times({1: 1.0, 64: 1.0})
    for _ in range(40):
        times.observe(8, 1.9)
    assert times.at(8) == pytest.approx(1.9, rel=0.05)
    assert 1.0 < times.at(1) < times.at(4) < times.at(8)


def test_rounds_that_read_a_prompt_too_count_for_little():
    times = Times({1: 1.0, 64: 2.0})
    for _ in range(20):
        times.observe(8, 10.0)
    assert times.at(8) < 1.6


def test_more_rows_are_never_quicker():
    times = Times({1: 1.0, 64: 2.0})
    for _ in range(100):
        times.observe(8, 2.0)
    assert (np.diff(times.at(np.arange(1, 100))) >= 0).all()


def test_exploring_takes_a_small_share_of_the_time():
    costs = RoundCosts({1: 1.0, 64: 2.0})
    spent = 0.0
    for _ in range(1000):
        if costs.may_explore:
            costs.explored(3.0)
            spent += 3.0
        costs.observe_pass(1, 1.0)
    assert 0 < spent <= EXPLORING * 1000 + 3


def test_free_rows_are_filled_and_dear_ones_are_not():
    assert best_lengths(FLAT, [option(0.5, 6)]).lengths == [6]
    assert best_lengths(STEEP, [option(0.5, 6)]).lengths == [0]


def test_each_request_gets_what_its_chances_are_worth():
    costs = RoundCosts({1: 1.0, 64: 6.0})
    lengths = best_lengths(costs, [option(0.95, 8), option(0.5, 8), option(0.01, 8)]).lengths
    assert lengths[0] == 8 > lengths[1] > lengths[2] == 0


def test_a_models_levels_are_paid_once_for_all_requests():
    costs = RoundCosts({1: 1.0, 64: 1.2})
    costs.observe_draft(1, 1, 0.7)
    assert best_lengths(costs, [option(0.6, 4, by_model=True)]).lengths == [0]
    many = best_lengths(costs, [option(0.8, 4, by_model=True)] * 8).lengths
    assert len(set(many)) == 1
    assert many[0] > 0


def test_one_request_without_a_lookup_does_not_make_all_others_wait():
    costs = RoundCosts({1: 1.0, 64: 1.2})
    costs.observe_draft(1, 1, 0.5)
    options = [option(0.9, 8)] * 7 + [option(0.8, 8, by_model=True)]
    assert best_lengths(costs, options).lengths == [8] * 7 + [0]


def test_no_options_at_all():
    assert best_lengths(FLAT, [option(0.9, 0), option(0.9, 0)]).lengths == [0, 0]
    assert rate(FLAT, 1, option(0.9, 0)) == pytest.approx(1.0)
