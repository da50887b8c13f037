"""What a mixture learns from, where many requests draft at once."""

import weakref
from itertools import pairwise

import pytest

from tandem.drafting import Verdict
from tandem.drafting.choosing import LOOKS, OWN, Chooser, Method
from tandem.drafting.costs import Load
from tandem.drafting.mixture import MODEL_TOLD_EVERY, MixtureProposer
from tandem.drafting.reading import Reading
from tandem.drafting.remembered import (
    MOST_PLANNED_FOR,
    PLANNED_FOR,
    Judged,
    Known,
    about,
    held,
)
from tandem.drafting.resting import LEARNT_FOR
from tandem.scheduler import Decode
from tests.engine.builders import make_request
from tests.engine.policy_world import LONGEST, RIGHT, Guess, World, of_a_model

BATCH = 8


@pytest.fixture
def chooser():
    """Of a model alone."""
    world = World()
    methods = [Method("model", Guess(world, 0.5, level_s=0.1), False)]
    return Chooser(methods, LONGEST, world.costs(), Reading(None))


def judged(now, requests, kept, drafted=1):
    """A round in which of each request's draft so many tokens were kept."""
    verdicts = [Verdict(list(range(1, n + 1)), [RIGHT] * (n + 1)) for n in kept]
    tokens = [[RIGHT] * drafted for _ in requests]
    asked, streaks = [drafted] * len(requests), [0] * len(requests)
    return Judged(now, requests, [], [], tokens, verdicts, asked, streaks, [])


def known_ones(count=BATCH):
    return [Known([{}]) for _ in range(count)]


def first_chance(chooser, own):
    return chooser._gains[0].expected(own, LONGEST)[0]


@pytest.mark.parametrize("good", [0, 1])
def test_each_request_has_its_own_to_learn_from_and_all_of_them_judge_the_model(chooser, good):
    """Those at every second place are right, the others never."""
    requests = known_ones()
    kept = [place % 2 == good for place in range(BATCH)]
    for now in range(400):
        chooser.judged(judged(now, requests, kept))
    chooser.learn(now)
    own = [first_chance(chooser, known.gains[0]) for known in requests]
    assert [chance > 0.7 for chance in own] == kept
    assert [chance < 0.3 for chance in own] == [not one for one in kept]
    assert first_chance(chooser, {}) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("batch", [4, 8, 16])
@pytest.mark.parametrize("every", [1, 2])
def test_all_of_them_take_turns_in_judging_the_model(chooser, batch, every):
    """Though only every second round may be learnt from."""
    requests = known_ones(batch)
    kept = [[place == one for place in range(batch)] for one in range(batch)]
    for one in range(batch):
        shares = [first_chance(chooser, {})]
        for now in range(0, 100 * every, every):
            chooser.judged(judged(now, requests, kept[one]))
        chooser.learn(now)
        shares.append(first_chance(chooser, {}))
        assert shares[1] == pytest.approx(1 / batch, abs=0.12)


@pytest.mark.parametrize("batch", [1, LOOKS, BATCH])
def test_the_model_is_judged_by_few_of_many(chooser, batch):
    for now in range(100):
        chooser.judged(judged(now, known_ones(batch), [1] * batch))
    chooser.learn(now)
    (record,) = chooser._gains[0]._all.values()
    assert record.drafts == 100 * min(batch, LOOKS)


@pytest.mark.parametrize("place", range(BATCH))
def test_one_that_alone_has_a_draft_tells_of_the_model(chooser, place):
    """As where the model is but tried."""
    tokens = [[RIGHT] if one == place else [] for one in range(BATCH)]
    round_ = judged(3, known_ones(), [one == place for one in range(BATCH)])
    chooser.judged(round_._replace(tokens=tokens))
    chooser.learn(4)
    (record,) = chooser._gains[0]._all.values()
    assert record.drafts == 1


def test_however_long_nothing_is_chosen_anew_little_is_left_to_learn(chooser):
    for now in range(100):
        chooser.judged(judged(now, known_ones(), [1] * BATCH))
        assert len(chooser._judged) < PLANNED_FOR


def test_nothing_is_kept_of_a_request_that_has_gone():
    world = World()
    mixture = of_a_model(world, Guess(world, 0.8, level_s=0.1))
    requests = [make_request([1, 2]) for _ in range(BATCH)]
    world.run(mixture, BATCH, LONGEST, 1, requests)
    gone = weakref.ref(requests.pop(0))
    for batch in (requests, [*requests, make_request([1, 2])]):  # another comes a round later
        world.run(mixture, len(batch), LONGEST, 1, batch)
        assert gone() is None


def test_a_request_is_like_others_until_it_has_drafts_of_its_own(chooser, monkeypatch):
    looked = []
    look = Chooser._look_ahead

    def watched(self, place, own, *of):
        looked.append(own)
        return look(self, place, own, *of)

    monkeypatch.setattr(Chooser, "_look_ahead", watched)
    requests = known_ones()

    def choose(now):
        looked.clear()
        for known in requests:
            known.until = 0
            decode = Decode(make_request([1, 2]), LONGEST)
            chooser.choose(decode, known, Load(BATCH), now)

    choose(now=1)
    assert len(looked) == 1
    for now in range(2, 2 + OWN):
        choose(now)
        assert not looked
        chooser.judged(judged(now, requests, [1] * BATCH))
    choose(now=2 + PLANNED_FOR)  # now it is learnt
    assert looked == [known.gains[0] for known in requests]


def test_it_is_learnt_now_and_then(chooser, monkeypatch):
    learnt = []
    learn = Chooser.learn

    def watched(self, now):
        learnt.append(len(self._judged))
        learn(self, now)

    monkeypatch.setattr(Chooser, "learn", watched)
    for now in range(1, 1 + 4 * PLANNED_FOR):
        known = Known([{}])  # whose outlook is made anew
        chooser.choose(Decode(make_request([1, 2]), LONGEST), known, Load(1), now)
        chooser.judged(judged(now, [known], [1]))
    assert learnt == [0] + 4 * [PLANNED_FOR]


@pytest.mark.parametrize(
    ("rounds", "batch", "holds"),
    [(8, 1, 8), (8, 8, 8), (8, 20, 20), (16, 9, 16), (8, 100, MOST_PLANNED_FOR)],
)
def test_plans_for_more_requests_hold_longer(rounds, batch, holds):
    assert held(rounds, batch) == holds


def test_few_numbers_stand_for_all():
    numbers = [1e-6 * 1.01**step for step in range(1000)]
    assert all(abs(about(one) / one - 1) < 0.1 for one in numbers)
    assert len({about(one) for one in numbers}) < 62


def test_a_round_behind_some_that_were_not_timed_shows_nothing():
    """Who has come or gone in them is not known."""
    world = World()
    mixture = of_a_model(world, Guess(world, 0.8, level_s=0.1))
    requests = [make_request([1, 2]) for _ in range(BATCH)]
    told, ended = [], mixture.watch.ended

    def watched(begun, rows, seconds):
        shows = ended(begun, rows, seconds)
        told.append((begun.follows, shows))
        return shows

    mixture.watch.ended = watched
    world.run(mixture, BATCH, LONGEST, 100, requests)
    assert (True, True) in told
    assert (False, False) in told
    assert (False, True) not in told


@pytest.mark.parametrize("count", [BATCH - 1, BATCH])
def test_where_requests_come_and_go_most_rounds_are_not_timed_either(count):
    world = World()
    mixture = of_a_model(world, Guess(world, 0.8, level_s=0.1))
    requests = [make_request([1, 2]) for _ in range(BATCH)]
    timed, ended = [], mixture.watch.ended
    mixture.watch.ended = lambda *of: timed.append(of) or ended(*of)
    for _ in range(60):
        requests = [*requests[1:], make_request([1, 2])]
        world.run(mixture, count, LONGEST, 1, requests[:count])
        world.run(mixture, BATCH, LONGEST, 2, requests)
    assert 10 < len(timed) < 100


@pytest.mark.parametrize(("drafts", "own"), [(OWN - 1, False), (OWN, True)])
def test_few_drafts_of_its_own_tell_less_than_those_of_others(chooser, drafts, own):
    known = Known([{}])
    for now in range(1, 1 + drafts):
        chooser.judged(judged(now, [known], [1]))
    chooser.learn(2)
    chooser.choose(Decode(make_request([1, 2]), LONGEST), known, Load(BATCH), 3)
    assert bool(chooser._usual) != own


def test_a_draft_in_each_round_keeps_what_is_known_from_fading():
    world = World()
    mixture = of_a_model(world, Guess(world, 0.8, level_s=0.1))
    requests = [make_request([1, 2]) for _ in range(BATCH)]
    world.run(mixture, BATCH, LONGEST, 5, requests)
    assert [mixture.planner.requests[one].drafts for one in requests] == [5] * BATCH


def test_how_sure_a_model_may_be_is_learnt_from_few_of_many():
    world = World()
    model = Guess(world, 0.8, level_s=0.1, sure=True)
    mixture = of_a_model(world, model)
    ended, told = model.confidence.ended, []
    model.confidence.ended = lambda *of: told.append(of) or ended(*of)
    world.run(mixture, BATCH, LONGEST, 100, [make_request([1, 2]) for _ in range(BATCH)])
    assert 0 < len(told) <= 100 * LOOKS


def test_less_room_for_one_is_no_other_plan():
    world = World()
    mixture = of_a_model(world, Guess(world, 0.8, level_s=0.1))
    requests = [make_request([1, 2]) for _ in range(2)]
    mixture.propose([Decode(one, LONGEST) for one in requests])
    rounds, until = mixture._agenda.rounds, mixture._agenda.until
    mixture.propose([Decode(requests[0], 1), Decode(requests[1], LONGEST)])
    assert (mixture._agenda.rounds, mixture._agenda.until) == (rounds, until)


def test_before_it_is_judged_whether_lookups_pay_all_is_learnt():
    """However short it is since the last time."""
    world = World()
    methods = [Method("lookup", Guess(world, 0.9), True)]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    requests = [make_request([1, 2])]
    world.run(mixture, 1, LONGEST, 2, requests)
    seen = len(mixture.planner.chooser._judged)
    mixture.lookups.pauses._asked = LEARNT_FOR
    world.run(mixture, 1, LONGEST, 1, requests)
    assert seen > 0
    assert len(mixture.planner.chooser._judged) <= 1


def test_of_rounds_that_nap_some_are_learnt_from():
    world = World()
    mixture = of_a_model(world, Guess(world, 0.8, level_s=0.1))
    judged, learn = [], mixture.planner.chooser.judged
    mixture.planner.chooser.judged = lambda one: judged.append(one.now) or learn(one)
    world.run(mixture, 1, LONGEST, 400, [make_request([1, 2])])
    assert 400 / MODEL_TOLD_EVERY <= len(judged) < 200
    assert max(b - a for a, b in pairwise(judged)) <= MODEL_TOLD_EVERY + 8  # a rest


@pytest.mark.parametrize("tried", [False, True])
def test_what_drafts_in_each_round_is_not_doubted(chooser, tried):
    requests = known_ones(1)
    for now in range(200):
        chooser.judged(judged(now, requests, [0]))
        chooser.learn(now)
    assert first_chance(chooser, {}) < 0.1
    chooser.judged(judged(200, requests, [1])._replace(tried=tried))
    chooser.learn(200)
    (record,) = chooser._gains[0]._all.values()
    assert (record.doubt > 0) == tried
