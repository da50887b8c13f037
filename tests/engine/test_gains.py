"""What drafts are expected to bring, learnt from what earlier ones have."""

import numpy as np
import pytest

from tandem.drafting.gains import PRIOR, Gains
from tandem.drafting.remembered import Known

COUNT = 4  # tokens of the drafts that gains are learnt from


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


def test_a_place_that_does_badly_by_chance_does_not_make_the_next_ones_worse():
    """They go on from what was seen right before them, not from the least."""
    gains, request = Gains(COUNT), {}
    learn(gains, {}, 900, COUNT, range(1, COUNT + 1))
    for draft in range(40):
        gains.learn(request, COUNT, COUNT, [1, 2, 3] if draft % 2 else [2], shared=False)
    found = gains.expected(request, COUNT)
    assert found == sorted(found, reverse=True)
    assert found[1] == found[0]  # chances never rise
    assert found[2] > 0.88 * found[0]


def first_chance(gains):
    return gains.expected({}, COUNT)[0]


def tried(gains, tried, kept):
    """A draft of a method that drafts but now and then."""
    gains.learn({}, COUNT, tried, kept)
    gains.doubt(COUNT, 1 in kept)


@pytest.mark.parametrize("hopeless", [60, 2000])
def test_a_method_that_has_become_good_is_believed_before_long(hopeless):
    gains, tries = Gains(COUNT), 0
    learn(gains, {}, hopeless, 2, [])
    assert first_chance(gains) < 0.1
    while first_chance(gains) < PRIOR and tries < 10:
        tried(gains, 2, [1, 2])
        tries += 1
    assert 2 <= tries <= 4


@pytest.mark.parametrize(("chance", "anew"), [(0.95, True), (0.5, False)])
def test_so_is_one_that_was_not_bad_before(chance, anew):
    """But not one that is as it was."""
    gains, draws = Gains(COUNT), np.random.default_rng(0)
    for turn in range(1500):
        learn(gains, {}, 1, 1, [1] * (turn % 2))
    known = gains._all[Gains.size(COUNT)]
    assert 0.45 < first_chance(gains) < 0.55
    for _ in range(30):
        tried(gains, 1, [1] * bool(draws.random() < chance))
    assert (gains._all[Gains.size(COUNT)] is not known) == anew


@pytest.mark.parametrize(("chance", "most"), [(0.02, 1), (0.2, 2)])
def test_that_a_method_is_lucky_now_and_then_makes_it_no_better(chance, most):
    gains, draws, believed = Gains(COUNT), np.random.default_rng(0), 0
    learn(gains, {}, 500, 1, [])
    for _ in range(2000):
        tried(gains, 1, [1] * bool(draws.random() < chance))
        believed += first_chance(gains) >= PRIOR - 0.1
    assert believed <= most * 10  # drafts, until it is known again


def test_what_is_believed_to_be_good_enough_is_not_doubted():
    gains = Gains(COUNT)
    for turn in range(400):
        learn(gains, {}, 1, 1, [1] * (turn % 3 > 0))
    known = gains._all[Gains.size(COUNT)]
    assert 0.6 < first_chance(gains) < 0.7
    known.doubt = 6.0  # when it was believed to be worse
    for _ in range(60):
        tried(gains, 1, [1])
    assert gains._all[Gains.size(COUNT)] is known
    assert known.doubt == 0
