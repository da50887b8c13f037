"""Lookups that do not bring what it takes to ask them."""

from itertools import pairwise

import pytest

from tandem.drafting.agenda import NO_PLANS
from tandem.drafting.choosing import Method
from tandem.drafting.costs import RoundCosts
from tandem.drafting.mixture import MODEL_TOLD_EVERY, MixtureProposer
from tandem.drafting.resting import FIRST_PAUSE, JUDGED_FOR, LEARNT_FOR, LONGEST_PAUSE, Pauses
from tandem.scheduler import Decode
from tests.engine.builders import make_request
from tests.engine.policy_world import LONGEST, Guess, World, of_a_model

WINDOW = LEARNT_FOR + JUDGED_FOR


def asked_of(pauses, rounds, saves, batch=8, first="a"):
    """In which rounds lookups are asked, which takes a millisecond."""
    asked = []
    for now in rounds:
        if not pauses.due(now, batch, first):
            asked.append(now)
            pauses.asked(now, batch, first, saves, 1e-3)
    return asked


def test_pauses_grow_and_between_them_lookups_are_tried():
    asked = asked_of(Pauses(), range(1, 500), 0.5e-3)
    pauses = [b - a - 1 for a, b in pairwise(asked) if b > a + 1]
    assert pauses == [16, 32, 64, LONGEST_PAUSE, LONGEST_PAUSE]
    assert asked[:WINDOW] == list(range(1, 1 + WINDOW))
    assert asked[WINDOW] == 1 + WINDOW + FIRST_PAUSE


def test_what_pays_never_pauses_and_pauses_begin_anew_behind_it():
    pauses = Pauses()
    assert len(asked_of(pauses, range(1, 200), 2e-3)) == 199
    asked_of(pauses, range(200, 600), 0.0)
    asked_of(pauses, range(600, 1000), 1.0)
    asked = asked_of(pauses, range(1000, 1300), 0.0)
    first = next(a for a, b in pairwise(asked) if b > a + 1)
    assert first + 1 + FIRST_PAUSE in asked
    assert first + FIRST_PAUSE not in asked


def test_what_paid_until_now_is_asked_once_more():
    """Half of what a window brought counts in the next one, but no more than asking takes."""
    for before, pauses_soon in ((2e-3, False), (100e-3, False), (1.2e-3, True)):
        pauses = Pauses()
        assert len(asked_of(pauses, range(1, 200), before)) == 199
        late = asked_of(pauses, range(200, 215), 0.7e-3)
        assert (len(late) < 15) == pauses_soon
        assert len(asked_of(pauses, range(215, 240), 0.0)) < 25


def test_a_pause_is_not_for_far_fewer_or_more_requests_nor_for_another_one_alone():
    pauses = Pauses()
    asked_of(pauses, range(1, 1 + WINDOW), 0.0)
    now = 1 + WINDOW
    assert [pauses.due(now, batch, "b") for batch in (8, 7, 10, 5, 11)] == [True] * 3 + [False] * 2
    alone = Pauses()
    asked_of(alone, range(1, 1 + WINDOW), 0.0, batch=1)
    assert [alone.due(now, 1, first) for first in "ab"] == [True, False]


def test_what_took_long_once_does_not_end_what_pays():
    pauses = Pauses()
    for now in range(1, 100):
        assert not pauses.due(now, 8, "a")
        pauses.asked(now, 8, "a", 2e-3, 1e-3 if now % 20 else 1.0)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("with_model", [False, True])
def test_hopeless_lookups_cost_next_to_nothing_and_are_used_when_they_find_something(
    batch, with_model
):
    world = World(row_s=0.01)
    lookup = Guess(world, 0.0, level_s=0.2 / LONGEST)  # a fifth of a pass
    model = [Method("model", Guess(world, 0.0, level_s=1.0), False)] if with_model else []
    methods = [Method("lookup", lookup, True), *model]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    requests = [make_request([1, 2]) for _ in range(batch)]
    world.run(mixture, batch, LONGEST, 300, requests)
    asked = lookup.asked
    plain = world.rate(batch, 0, 0.0)
    assert world.run(mixture, batch, LONGEST, 1000, requests) > 0.95 * plain
    assert 60 < lookup.asked - asked < 200
    lookup.chance = 0.95
    windows = 1 if batch == 1 else 2  # with eight, finds must be better to be worth it
    world.run(mixture, batch, LONGEST, windows * (LONGEST_PAUSE + WINDOW), requests)
    assert world.run(mixture, batch, LONGEST, 40, requests) > 1.5 * plain
    assert mixture._asked


def test_what_was_found_before_a_pause_is_not_judged_by_texts_behind_it():
    world = World()
    lookup = Guess(world, 0.0, level_s=0.2)
    mixture = MixtureProposer(
        [Method("lookup", lookup, True)], LONGEST, world.costs(), clock=world.clock
    )
    requests = [make_request([1, 2])]
    for _ in range(WINDOW + 1):
        judged = len(mixture.planner.chooser._judged)
        world.run(mixture, 1, LONGEST, 1, requests)
    assert not mixture._asked
    assert len(mixture.planner.chooser._judged) == judged


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_what_an_agenda_saves(found):
    """By what its drafts should bring, beside as many tokens without them."""
    world = World(row_s=0.05)
    lookup = Method("lookup", Guess(world, 0.9, found), True)
    mixture = MixtureProposer([lookup], LONGEST, world.costs(), clock=world.clock)
    mixture.propose([Decode(make_request([1, 2]), LONGEST) for _ in range(2)])
    agenda = mixture._agenda
    choice = agenda.requests[0].choices[LONGEST, 0.0, LONGEST * bool(found)]
    lengths, gains = agenda.plan.lengths, choice.option.gains
    assert bool(lengths[0]) == bool(found)
    tokens = sum(1 + sum(gains[:length]) for length in lengths)
    without = world.pass_s(2) * tokens / 2
    saves = without - world.pass_s(2 + sum(lengths))
    assert agenda.saves(2 / world.pass_s(2)) == pytest.approx(saves, rel=0.05)
    assert mixture.planner.plans.without == pytest.approx(1)


def test_beside_a_model_lookups_save_what_it_would_not():
    """They are compared with the model's rounds, where these are faster than none."""
    world = World(row_s=0.01)
    methods = [
        Method("lookup", Guess(world, 0.9), True),
        Method("model", Guess(world, 0.9, level_s=0.01), False),
    ]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    world.run(mixture, 2, LONGEST, 200)
    mixture.lookups.pauses.due = lambda *_: False
    world.run(mixture, 2, LONGEST, 1)
    by_model = max(world.rate(2, k, 0.9, level_s=0.01) for k in range(1 + LONGEST))
    assert mixture.planner.plans.without == pytest.approx(by_model / world.rate(2, 0, 0.0), rel=0.1)
    assert mixture.planner.plans.without > 2


def test_what_lookups_save_is_compared_with_the_same_number_of_requests(monkeypatch):
    """Though plans hold for some more or fewer. (These find nothing.)"""
    saved = []
    asked = Pauses.asked

    def watched(pauses, now, batch, first, saves, took):
        saved.append((batch, saves))
        asked(pauses, now, batch, first, saves, took)

    monkeypatch.setattr(Pauses, "asked", watched)
    monkeypatch.setattr(Pauses, "due", lambda *_: False)
    world = World(row_s=0.01)
    methods = [Method("lookup", Guess(world, 0.5, found=0.0), True)]
    methods.append(Method("model", Guess(world, 0.8, level_s=0.05), False))
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    requests = [make_request([1, 2]) for _ in range(8)]
    world.run(mixture, 8, LONGEST, 300, requests)
    for batch in (7, 8) * 10:
        saved.clear()
        world.run(mixture, batch, LONGEST, 1, requests[:batch])
        assert saved[0][0] == batch
        assert saved[0][1] == pytest.approx(0, abs=0.05)


def test_plans_for_one_request_hold_for_no_other():
    plans = NO_PLANS.anew(1, "a", 5, 1.5, 1.0)
    assert plans.hold(1, "a", 6) and not plans.hold(1, "b", 6)
    many = NO_PLANS.anew(8, "a", 5, 1.5, 1.0)
    assert many.hold(7, "b", 6) and not many.hold(5, "a", 6)
    assert not many.hold(8, "a", many.until)


def test_most_rounds_of_lookups_alone_are_not_timed_and_passes_are_learnt_all_the_same():
    world = World(row_s=0.2)
    mixture = MixtureProposer(
        [Method("lookup", Guess(world, 0.9), True)],
        LONGEST,
        RoundCosts({1: 1.0, 64: 1.5}),
        clock=world.clock,
    )
    timed = []
    ended = mixture.watch.ended
    mixture.watch.ended = lambda *of: timed.append(0) or ended(*of)
    world.run(mixture, 1, LONGEST, 4000, [make_request([1, 2])])
    assert mixture.lookups.asked
    assert 100 < len(timed) < 1000
    (length,) = mixture._agenda.plan.lengths
    expected = mixture.costs.passes(1 + length)[1 + length]
    assert expected == pytest.approx(world.pass_s(1 + length), rel=0.2)


def test_a_models_drafts_are_timed_though_lookups_mostly_draft():
    world = World(row_s=0.01)
    lookup = Guess(world, 0.95, found=0.8, level_s=0.0)
    methods = [Method("lookup", lookup, True)]
    methods.append(Method("model", Guess(world, 0.9, level_s=0.1), False))
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    world.run(mixture, 1, LONGEST, 300, [make_request([1, 2])])
    drafts = mixture.costs.drafts(1, LONGEST)
    assert drafts[LONGEST] == pytest.approx(0.1 * LONGEST, rel=0.1)


def test_where_nothing_is_drafted_there_is_room_again_when_a_pause_has_ended():
    world = World(row_s=1.0)
    lookup = Guess(world, 0.0, level_s=0.2 / LONGEST)
    mixture = MixtureProposer(
        [Method("lookup", lookup, True)], LONGEST, world.costs(), clock=world.clock
    )
    requests = [make_request([1, 2]) for _ in range(8)]
    ending, others = [], []
    for _ in range(600):
        ends = mixture.lookups.pauses._until == mixture._rounds + 1
        (ending if ends else others).append(mixture.may_draft)
        world.run(mixture, 8, LONGEST, 1, requests)
    assert len(ending) > 4 and all(ending)
    assert others.count(False) > 100


def test_where_there_is_no_room_any_more_lookups_are_not_asked():
    world = World()
    lookup = Guess(world, 0.95)
    mixture = MixtureProposer(
        [Method("lookup", lookup, True)], LONGEST, world.costs(), clock=world.clock
    )
    requests = [make_request([1, 2])]
    world.run(mixture, 1, LONGEST, 20, requests)
    assert mixture.lookups.asked
    world.run(mixture, 1, 0, 5, requests)
    assert not mixture.lookups.asked
    assert lookup.asked == 20


def test_what_rounds_take_is_learnt_where_lookups_are_asked_and_find_nothing(monkeypatch):
    monkeypatch.setattr(Pauses, "due", lambda *_: False)
    world = World(between_s=0.3)
    mixture = MixtureProposer(
        [Method("lookup", Guess(world, 0.9, found=0.0), True)],
        LONGEST,
        world.costs(),
        clock=world.clock,
    )
    world.run(mixture, 1, LONGEST, 50, [make_request([1, 2])])
    assert mixture.costs.between.of(1) == pytest.approx(0.3)


def test_a_model_drafts_and_verifies_in_one_launch_in_pauses_alone():
    world = World()
    model = Guess(world, 0.9, level_s=0.05)
    methods = [Method("lookup", Guess(world, 0.0, level_s=0.2 / LONGEST), True)]
    mixture = MixtureProposer(
        [*methods, Method("model", model, False)], LONGEST, world.costs(), clock=world.clock
    )
    told = set()
    drafted = model.propose

    def watched(decodes, alone=False):
        told.add((mixture.lookups.asked, alone))
        return drafted(decodes, alone)

    model.propose = watched
    world.run(mixture, 4, LONGEST, 200)
    assert told == {(True, False), (False, True)}


class Dear(Guess):
    """It takes its time for whatever it is asked."""

    dear_s = 0.01

    def propose(self, decodes, alone=False):
        self.world.now += self.dear_s
        return super().propose(decodes, alone)


def test_without_room_for_drafts_lookups_are_not_asked_and_do_not_pause():
    world = World()
    lookup = Dear(world, 0.95)
    methods = [Method("lookup", lookup, True)]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    requests = [make_request([1, 2])]
    world.run(mixture, 1, 0, 100, requests)
    assert lookup.asked == 0
    world.run(mixture, 1, LONGEST, 50, requests)
    assert lookup.asked == 50


@pytest.mark.parametrize("batch", [1, 8])
def test_a_model_drafts_on_while_lookups_pause_that_find_less(batch):
    world = World()
    lookup, model = Guess(world, 0.0, level_s=0.2 / LONGEST), Guess(world, 0.9, level_s=0.05)
    methods = [Method("lookup", lookup, True), Method("model", model, False)]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    alone = of_a_model(world, model)
    requests = [make_request([1, 2]) for _ in range(batch)]
    for one in (alone, mixture):
        world.run(one, batch, LONGEST, 300, requests)
    by_model = world.run(alone, batch, LONGEST, 1000, requests)
    lookup.asked = model.asked = 0
    assert world.run(mixture, batch, LONGEST, 1000, requests) > 0.95 * by_model
    assert 60 < lookup.asked < 200
    assert model.asked > 950
    lookup.chance = 0.99
    world.run(mixture, batch, LONGEST, 4 * (LONGEST_PAUSE + WINDOW), requests)
    assert world.run(mixture, batch, LONGEST, 40, requests) > 1.1 * by_model


def test_what_asking_takes_is_not_counted_among_what_rounds_take_beside_their_passes():
    world = World(between_s=0.3)
    lookup = Dear(world, 0.95)
    lookup.dear_s = 0.5
    mixture = MixtureProposer(
        [Method("lookup", lookup, True)], LONGEST, world.costs(), clock=world.clock
    )
    world.run(mixture, 1, LONGEST, 200, [make_request([1, 2])])
    assert mixture.lookups.asked
    assert mixture.costs.between.of(1) == pytest.approx(0.3, rel=0.05)


def test_a_pause_begins_with_a_plan_of_its_own_and_nothing_is_learnt_of_lookups_in_it():
    world = World()
    methods = [Method("lookup", Guess(world, 0.0, level_s=0.2 / LONGEST), True)]
    methods.append(Method("model", Guess(world, 0.9, level_s=0.05), False))
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    requests = [make_request([1, 2]) for _ in range(4)]
    judged, before, begun = [], False, 0
    learn = mixture.planner.chooser.judged
    mixture.planner.chooser.judged = lambda one: judged.append(one) or learn(one)
    for _ in range(300):
        world.run(mixture, 4, LONGEST, 1, requests)
        if before and not mixture.lookups.asked:
            assert mixture._agenda.made == mixture._rounds
            begun += 1
        before = mixture.lookups.asked
        assert bool(judged[-1].found) == mixture.lookups.asked
    assert begun > 2
    assert 300 / MODEL_TOLD_EVERY <= len(judged) < 200


def test_lookups_beside_a_model_are_asked_where_they_save_more_than_that_takes():
    world = World()
    lookup, model = Guess(world, 0.9, level_s=0.001), Guess(world, 0.9, level_s=0.1)
    methods = [Method("lookup", lookup, True), Method("model", model, False)]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    world.run(mixture, 1, LONGEST, 200, [make_request([1, 2])])
    assert lookup.asked == 200


def run_until(world, mixture, requests, pausing):
    for _ in range(LONGEST_PAUSE + WINDOW):
        if mixture.lookups.asked != pausing:
            return
        world.run(mixture, 1, LONGEST, 1, requests)
    pytest.fail("it did not come")


def test_it_is_judged_by_what_was_learnt_since_the_pause():
    world = World()
    lookup = Guess(world, 0.0, level_s=0.2 / LONGEST)
    methods = [Method("lookup", lookup, True)]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    requests = [make_request([1, 2])]
    world.run(mixture, 1, LONGEST, 500, requests)
    for pausing in (False, True, False):  # one has just ended
        run_until(world, mixture, requests, pausing)
    lookup.chance = 0.95
    world.run(mixture, 1, LONGEST, WINDOW, requests)
    assert world.run(mixture, 1, LONGEST, 40, requests) > 3


@pytest.mark.parametrize("between", [True, False])
def test_one_who_comes_alone_in_a_pause_is_looked_at(between):
    """Whether or not a round without anybody has read his prompt."""
    world = World()
    lookup = Method("lookup", Dear(world, 0.0), True)
    model = Method("model", Guess(world, 0.0, level_s=0.5), False)
    mixture = MixtureProposer([lookup, model], LONGEST, world.costs(), clock=world.clock)
    old = [make_request([1, 2])]
    for _ in range(2000):
        world.run(mixture, 1, LONGEST, 1, old)
        if not (mixture.lookups.asked or mixture.may_draft):
            break
    assert not (mixture.lookups.asked or mixture.may_draft)
    if between:
        mixture.propose([])
        assert mixture.may_draft
    room = LONGEST if mixture.may_draft else 0
    mixture.propose([Decode(make_request([1, 2]), room)], alone=True)
    assert mixture.lookups.asked == between
    world.run(mixture, 1, LONGEST, 1, old)
