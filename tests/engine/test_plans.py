"""How long what a mixture has planned holds, and for whom."""

import pytest

from tandem.drafting import Draft, choosing
from tandem.drafting.agenda import Plans
from tandem.drafting.choosing import Method
from tandem.drafting.costs import FIRST_PROBES, Load, RoundCosts
from tandem.drafting.first_plans import MOST_FIRST_FOR
from tandem.drafting.mixture import MixtureProposer
from tandem.drafting.planning import Planner
from tandem.drafting.remembered import (
    IDLE_FOR,
    MOST_IDLE,
    MOST_PLANNED_FOR,
    PLANNED_FOR,
    held,
)
from tandem.drafting.times import TextTimes
from tandem.request import SamplingParams
from tandem.scheduler import Decode
from tests.engine.builders import make_request
from tests.engine.policy_world import LONGEST, Guess, World, of_a_model


@pytest.fixture
def made(monkeypatch):
    """Round by round, for how many requests an agenda was made."""
    found = []
    make = Planner._agenda

    def watched(self, decodes, *of):
        found.append(len(decodes))
        return make(self, decodes, *of)

    monkeypatch.setattr(Planner, "_agenda", watched)
    return found


def decodes_of(requests):
    return [Decode(request, LONGEST) for request in requests]


def test_what_is_planned_holds_while_no_others_come_and_few_go(made):
    world = World()
    model = Guess(world, 0.8, level_s=0.1)
    mixture = of_a_model(world, model)
    requests = [make_request([1, 2]) for _ in range(9)]
    holds = held(PLANNED_FOR, 8)
    few = (5, holds - 7, []), (5, 3, [5]), (5, holds, [5])  # each within the round before
    for count, rounds, due in ((8, 2, [8]), (7, 2, []), (6, 2, []), *few, (9, 2, [9])):
        made.clear()
        asked = model.asked
        world.run(mixture, count, LONGEST, rounds, requests[:count])
        assert made == due
        assert model.asked == asked + rounds
    made.clear()
    world.run(mixture, 9, LONGEST, 3 * MOST_PLANNED_FOR, requests)
    assert 3 <= len(made) <= 4


def test_near_its_end_a_request_drafts_no_more_than_there_is_room_for(made):
    world = World()
    mixture = of_a_model(world, Guess(world, 0.9, level_s=0.1))
    request = make_request([1, 2])
    found = [len(mixture.propose([Decode(request, room)]).tokens[0]) for room in (8, 5, 2, 1, 0, 8)]
    assert made == [1]
    assert found[0] == found[-1] > 2
    assert found[2:5] == [2, 1, 0]


def test_without_drafts_what_is_planned_holds_longer(made):
    world = World(row_s=10.0)
    mixture = of_a_model(world, Guess(world, 0.1, level_s=5.0))
    requests = [make_request([1, 2])]
    world.run(mixture, 1, LONGEST, 40 * FIRST_PROBES, requests)
    made.clear()
    world.run(mixture, 1, LONGEST, 1000, requests)
    assert len(made) <= 10


def test_where_there_is_more_room_again_it_is_planned_anew(made):
    world = World()
    mixture = of_a_model(world, Guess(world, 0.9, level_s=0.1))
    request = make_request([1, 2])
    found = [len(mixture.propose([Decode(request, room)]).tokens[0]) for room in (2, 2, 8)]
    assert made == [1, 1]
    assert found[:2] == [2, 2]
    assert found[2] > 2


def test_a_budget_that_is_shared_out_by_turns_changes_no_plan(made):
    world = World()
    mixture = of_a_model(world, Guess(world, 0.95, level_s=0.01))
    requests = [make_request([1, 2]) for _ in range(2)]
    found = []
    for rooms in ((3, 2), (2, 3), (3, 2)):
        decodes = [Decode(one, room) for one, room in zip(requests, rooms, strict=True)]
        found.append([len(one) for one in mixture.propose(decodes).tokens])
    assert made == [2]
    assert found == [[3, 2], [2, 2], [3, 2]]


@pytest.mark.parametrize("more", [0, 1])
def test_where_nobody_had_room_whoever_has_some_is_planned_for(made, more):
    world = World()
    mixture = of_a_model(world, Guess(world, 0.95, level_s=0.01))
    requests = [make_request([1, 2]) for _ in range(2)]
    for rooms in ((0, 0), (0, 0), (0, more)):
        decodes = [Decode(one, room) for one, room in zip(requests, rooms, strict=True)]
        draft = mixture.propose(decodes)
    assert made == [2] * (1 + more)
    assert len(draft.tokens[1]) == more


def test_tries_are_for_all_in_turn():
    world = World(row_s=1.0)
    model = Guess(world, 0.0, level_s=1.0)
    mixture = of_a_model(world, model)
    requests = [make_request([1, 2]) for _ in range(4)]
    tried, propose = [], model.propose

    def watched(decodes, alone=False):
        tried.extend(place for place, one in enumerate(decodes) if one.lookahead)
        return propose(decodes, alone)

    world.run(mixture, 4, LONGEST, 200, requests)
    model.propose = watched
    world.run(mixture, 4, LONGEST, 20_000, requests)
    counts = [tried.count(place) for place in range(4)]
    assert min(counts) >= 3
    assert max(counts) - min(counts) <= 2


def test_where_room_was_not_what_was_short_more_of_it_changes_nothing(made):
    world = World(row_s=0.2)
    mixture = of_a_model(world, Guess(world, 0.6, level_s=0.1))
    request = make_request([1, 2])
    found = [len(mixture.propose([Decode(request, room)]).tokens[0]) for room in (6, 6, 8)]
    assert made == [1]
    assert 0 < found[0] < 6 and len(set(found)) == 1


def test_for_nobody_who_has_room_nothing_is_tried_and_plans_hold(made):
    world = World()
    model = Guess(world, 0.9, level_s=0.1)
    mixture = of_a_model(world, model)
    world.run(mixture, 2, 0, 60)
    assert not model.asked
    assert len(made) <= 3
    assert mixture.costs.between.besides(2) == 0


def test_who_comes_to_others_drafts_as_they_do(made):
    world = World()
    model = Guess(world, 0.8, level_s=0.1)
    mixture = of_a_model(world, model)
    old, new = ([make_request([1, 2]) for _ in range(count)] for count in (8, 2))
    world.run(mixture, 8, LONGEST, 60, old)
    made.clear()
    for batch in (old + new[:1], old[2:] + new, old[2:] + new, old[3:] + new):
        lengths = [len(one) for one in mixture.propose(decodes_of(batch)).tokens]
        assert 0 < lengths[-1] <= max(lengths[:-2])
    assert made == []
    mixture.propose(decodes_of([make_request([1, 2]) for _ in range(8)]))
    assert made == [8]  # nobody is left


# Of two, one may be alone for a round before the next one comes.
@pytest.mark.parametrize(("whole", "rounds"), [(8, [8]), (2, [1, 2, 2, 2])])
def test_where_requests_come_and_go_plans_are_made_anew_before_long(made, whole, rounds):
    world = World()
    mixture = of_a_model(world, Guess(world, 0.8, level_s=0.1))
    requests = [make_request([1, 2]) for _ in range(whole)]
    world.run(mixture, whole, LONGEST, 100, requests)
    made.clear()
    for _ in range(80 // len(rounds)):
        requests = [*requests[1:], make_request([1, 2])]
        for count in rounds:
            world.run(mixture, count, LONGEST, 1, requests[:count])
    plans = 80 / held(PLANNED_FOR, whole)
    assert plans - 2 <= len(made) <= plans + 6


def test_one_of_whom_nothing_is_known_is_drafted_for_as_the_last_such_one(made):
    world = World()
    model = Guess(world, 0.8, level_s=0.1)
    mixture = of_a_model(world, model)
    world.run(mixture, 1, LONGEST, 100, [make_request([1, 2])])
    world.run(mixture, 1, LONGEST, PLANNED_FOR, [make_request([1, 2])])
    wish = mixture._agenda.asks.lengths
    made.clear()
    for _ in range(5):
        newcomer = make_request([1, 2])
        world.run(mixture, 1, LONGEST, 1, [newcomer])
        assert (mixture._agenda.asks.lengths, mixture._agenda.made) == (wish, mixture._rounds)
        world.run(mixture, 1, LONGEST, PLANNED_FOR - 2, [newcomer])
    assert made == []
    world.run(mixture, 1, LONGEST, PLANNED_FOR, [newcomer])  # it has drafts of its own
    assert made == [1]
    world.run(mixture, 1, LONGEST - 3, 1, [make_request([1, 2])])  # others have less room
    assert made == [1, 1]
    world.run(mixture, 1, LONGEST, MOST_FIRST_FOR, [newcomer])
    made.clear()
    world.run(mixture, 1, LONGEST, 1, [make_request([1, 2])])
    assert made == [1]  # what it rested on may have changed


def test_a_model_that_does_not_pay_is_not_drafted_with_for_others_either():
    world = World()
    model = Guess(world, 0.8, level_s=0.1)
    mixture = of_a_model(world, model)
    world.run(mixture, 1, LONGEST, 100, [make_request([1, 2])])
    assert mixture.planner.first_plans._plans
    model.chance = 0.0
    world.run(mixture, 1, LONGEST, 1500, [make_request([1, 2])])
    assert mixture._agenda.idle is not None
    assert not mixture.planner.first_plans._plans


def test_where_more_want_a_draft_than_there_are_rows_for_none_has_one():
    world = World()
    mixture = of_a_model(world, Guess(world, 0.8, level_s=0.1))
    requests = [make_request([1, 2]) for _ in range(3)]
    world.run(mixture, 3, LONGEST, 60, requests)
    mixture._agenda = mixture._agenda._replace(brim=4)
    requests[2] = make_request([1, 2])
    world.run(mixture, 3, LONGEST, 1, requests)
    assert (mixture._agenda.by_model, mixture._agenda.asks.places) == (False, [])
    made = mixture._agenda.made
    world.run(mixture, 3, LONGEST, 3 * PLANNED_FOR, requests)
    assert mixture._agenda.made > made and mixture._agenda.by_model


def test_what_comes_is_planned_beside_the_pass_before_it(made, monkeypatch):
    """And holds for those that are there then."""
    world = World()
    mixture = of_a_model(world, Guess(world, 0.8, level_s=0.1))
    requests = [make_request([1, 2]) for _ in range(4)]
    world.run(mixture, 4, LONGEST, 100, requests)
    makes, beside = Planner.make, []

    def make(self, before, decodes, now):
        beside.append(now - mixture._rounds)
        return makes(self, before, decodes, now)

    monkeypatch.setattr(Planner, "make", make)
    world.run(mixture, 4, LONGEST, 4 * MOST_PLANNED_FOR, requests)
    assert beside == [1] * 4  # of the next round
    while mixture.meanwhile is None:
        world.run(mixture, 4, LONGEST, 1, requests)
    mixture.meanwhile()
    coming = mixture._coming
    newer = [*requests[1:], make_request([1, 2])]
    made.clear()
    world.run(mixture, 4, LONGEST, 1, newer)
    assert made == []
    assert mixture._agenda.made == coming.made
    assert mixture._agenda.decodes == decodes_of(newer)


def test_who_comes_waits_no_longer_than_for_a_first_plan(made):
    world = World()
    mixture = of_a_model(world, Guess(world, 0.8, level_s=0.1))
    requests = [make_request([1, 2]) for _ in range(8)]
    world.run(mixture, 8, LONGEST, 600, requests)
    made.clear()
    while not made:
        world.run(mixture, 8, LONGEST, 1, requests)
    made.clear()
    newer = [*requests[1:], make_request([1, 2])]
    for _ in range(2):  # the next one is for them too, and holds as long
        rounds = rounds_to_a_plan(world, mixture, newer, made)
        assert rounds - held(PLANNED_FOR, 8) in (0, 1)


def rounds_to_a_plan(world, mixture, requests, made):
    rounds = 0
    while not made:
        world.run(mixture, len(requests), LONGEST, 1, requests)
        rounds += 1
    made.clear()
    return rounds


def hopeless(made, rounds):
    """A world, a mixture of a model that is seldom right, and requests for which nothing is drafted
    for long: the plan was just made, and the model is not tried any more."""
    world = World(row_s=0.1)
    mixture = of_a_model(world, Guess(world, 0.1, level_s=5.0))
    requests = [make_request([1, 2]) for _ in range(8)]
    world.run(mixture, 8, LONGEST, rounds, requests)
    mixture.costs.explored(1e9)
    made.clear()
    rounds_to_a_plan(world, mixture, requests, made)
    while mixture._agenda.rounds < MOST_IDLE:
        rounds_to_a_plan(world, mixture, requests, made)
    return world, mixture, requests


@pytest.mark.parametrize("pays", [True, False])
def test_who_comes_where_nothing_is_drafted_waits_if_he_should_not_draft_either(made, pays):
    world, mixture, requests = hopeless(made, rounds=600)
    until = mixture._agenda.until - mixture._rounds
    assert until == IDLE_FOR * MOST_IDLE
    newer = [*requests[1:], make_request([1, 2])]
    choose = mixture.planner.chooser.choose

    def should_draft(decode, *more):
        choice = choose(decode, *more)
        assert choice.plan.lengths == [0]
        if decode.request is not newer[-1]:
            return choice
        return choice._replace(plan=choice.plan._replace(lengths=[1]))

    if pays:
        mixture.planner.chooser.choose = should_draft
    mixture._naps.due = lambda drafting: False
    world.run(mixture, 8, LONGEST, 1, newer)
    waits = rounds_to_a_plan(world, mixture, newer, made)
    assert waits == (IDLE_FOR * PLANNED_FOR if pays else until - 1)


def test_while_nothing_is_drafted_nothing_is_worked_out_for_the_same_requests(made, monkeypatch):
    """Whatever room there is for drafts."""
    world, mixture, requests = hopeless(made, rounds=600)
    asked = []
    monkeypatch.setattr(mixture.planner, "planned", lambda *one: asked.append(one))
    for room in (LONGEST, 0, LONGEST - 1):
        while mixture.propose([Decode(one, room) for one in requests]).tokens and (
            mixture._round is None  # one that is looked at
        ):
            mixture.passed(8, world.pass_s(8))
        mixture.passed(8, world.pass_s(8))
    assert not asked


def test_a_plan_of_no_drafts_ends_where_there_is_time_to_try_the_model(made):
    world, mixture, requests = hopeless(made, rounds=600)
    mixture.costs.elapse(1e15)
    asked = mixture.model.proposer.asked
    waits = rounds_to_a_plan(world, mixture, requests, made)
    assert IDLE_FOR * PLANNED_FOR <= waits < IDLE_FOR * MOST_IDLE
    assert mixture.model.proposer.asked == asked + 1
    mixture.costs.explored(1e15)
    waits = rounds_to_a_plan(world, mixture, requests, made)
    assert waits == IDLE_FOR * PLANNED_FOR  # with what was learnt
    waits = [rounds_to_a_plan(world, mixture, requests, made) for _ in range(4)]
    assert waits[0] > IDLE_FOR * PLANNED_FOR
    assert waits == sorted(waits) and waits[-1] == IDLE_FOR * MOST_IDLE  # as before


def test_the_first_plan_with_drafts_holds_as_long_as_any_first_one(made):
    world, mixture, requests = hopeless(made, rounds=600)
    mixture.model.proposer.chance, mixture.model.proposer.level_s = 1.0, 0.01
    mixture.costs.elapse(1e15)
    for _ in range(4000):
        world.run(mixture, 8, LONGEST, 1, requests)
        if mixture._agenda.by_model:
            break
    assert mixture._agenda.by_model
    assert mixture._agenda.rounds == PLANNED_FOR


@pytest.mark.parametrize("place", [0, 3, 7])
def test_what_is_idle_holds_for_who_comes_wherever_that_is_and_where_all_are_new(made, place):
    world = World(row_s=10.0)
    mixture = of_a_model(world, Guess(world, 0.1, level_s=5.0))
    # where one that has come in the middle is not noticed yet
    mixture._naps.due = lambda drafting: False
    requests = [make_request([1, 2]) for _ in range(8)]
    world.run(mixture, 8, LONGEST, 600, requests)
    while mixture._agenda is None or mixture._agenda.idle is None:
        world.run(mixture, 8, LONGEST, 1, requests)
    newer = [*requests]
    newer[place] = make_request([1, 2])
    made.clear()
    mixture.propose(decodes_of(newer))
    assert not made
    assert mixture._agenda.is_for(decodes_of(newer))
    others = decodes_of([make_request([1, 2]) for _ in range(8)])
    mixture.propose(others)
    assert not made
    mixture.propose([])
    assert mixture.propose(others).tokens == [[]] * 8
    assert not made


def test_what_is_idle_stays_so_for_who_comes(made):
    world = World(row_s=10.0)
    model = Guess(world, 0.1, level_s=5.0)
    mixture = of_a_model(world, model)
    requests = [make_request([1, 2]) for _ in range(8)]
    world.run(mixture, 8, LONGEST, 300, requests)
    made.clear()
    asked = model.asked
    world.run(mixture, 8, LONGEST, 5, [*requests[1:], make_request([1, 2])])
    assert len(made) <= 1
    assert model.asked == asked


@pytest.mark.parametrize(("room", "drafts"), [(400, True), (20, False)])
def test_what_a_model_must_read_is_borne_by_the_rounds_that_are_left(room, drafts):
    world = World()
    model = Guess(world, 0.9, level_s=0.1)
    costs = world.costs()
    costs.observe_draft(1, 1, 8.1, 100)
    for _ in range(FIRST_PROBES + 1):  # it would be tried otherwise
        costs.explored(1.0)
    mixture = MixtureProposer([Method("model", model, False)], LONGEST, costs, clock=world.clock)
    assert drafts_for_one_that_read_nothing(mixture, room) == drafts


def drafts_for_one_that_read_nothing(mixture, room):
    request = make_request([1, 2] * 50, max_total=100 + room)
    request.computed = 99
    return bool(mixture.propose([Decode(request, LONGEST)]).tokens[0])


@pytest.mark.parametrize(("share", "room", "drafts"), [(0.02, 400, False), (1.0, 24, True)])
def test_requests_are_expected_to_write_as_much_as_others_have(share, room, drafts):
    world = World()
    costs = world.costs()
    costs.observe_draft(1, 1, 8.1, 100)
    for _ in range(FIRST_PROBES + 1):
        costs.explored(1.0)
    model = Method("model", Guess(world, 0.9, level_s=0.1), False)
    mixture = MixtureProposer([model], LONGEST, costs, clock=world.clock)
    assert drafts_for_one_that_read_nothing(mixture, room) != drafts
    for _ in range(100):
        ended = make_request([1, 2], max_total=102)
        ended.tokens += [1] * int(100 * share)
        mixture.finished(ended)
    assert drafts_for_one_that_read_nothing(mixture, room) == drafts


def test_an_engine_tells_what_its_requests_have_written(engine, good_draft):
    one = engine(draft_model=good_draft, adaptive_speculation=True)
    told = []
    one.proposer.finished = told.append
    params = SamplingParams(temperature=0, max_tokens=7, ignore_eos=True)
    one.generate([[1, 2], [3]], params)
    assert [request.num_output for request in told] == [7, 7]


@pytest.mark.parametrize("batch", [1, 3])
def test_behind_longer_texts_rows_are_dearer_and_drafts_shorter(batch):
    def longest(text):
        world = World()
        costs = RoundCosts({1: 1.0, 64: 1.01}, TextTimes(0.0, 3e-4))
        model = Method("model", Guess(world, 0.9, level_s=0.01), False)
        mixture = MixtureProposer([model], LONGEST, costs, clock=world.clock)
        requests = [make_request([1] * text, max_total=10**4) for _ in range(batch)]
        for request in requests:
            request.computed = request.draft_computed = text - 1
        return max(len(tokens) for tokens in mixture.propose(decodes_of(requests)).tokens)

    assert longest(10) > longest(2000) > 0


def test_a_round_is_learnt_with_the_texts_it_had():
    world = World()
    mixture = of_a_model(world, Guess(world, 0.9, level_s=0.1))
    requests = [make_request([1] * text) for text in (30, 50)]
    for request in requests:
        request.computed = len(request.tokens) - 1
    seen = []
    mixture.costs.observe_pass = lambda load, rows, seconds: seen.append(load)
    world.run(mixture, 2, LONGEST, 20, requests)
    assert set(seen) == {Load(2, 29 + 49)}


class Unlike(Guess):
    """A model that guesses better for some requests than for others."""

    def propose(self, decodes, alone=False):
        asked = [decode.lookahead for decode in decodes]
        self.world.now += self.level_s * max(asked)
        drafts = []
        for place, count in enumerate(asked):
            self.chance = (0.95, 0.85, 0.4)[place % 3]
            drafts.append(self._draft(count))
        return Draft(drafts)


@pytest.mark.parametrize("row_s", [0.005, 0.05])
@pytest.mark.parametrize("found", [0.2, 0.5, 0.9])
def test_what_lookups_find_is_joined_to_plans_that_hold(monkeypatch, row_s, found):
    """It yields what plans of every round's own do."""
    anew = choosing.best_lengths
    planned = []

    def watched(*arguments):
        planned.append(0)
        return anew(*arguments)

    monkeypatch.setattr(choosing, "best_lengths", watched)

    def run(rounds=2000):
        world = World(row_s)
        lookup = Method("lookup", Guess(world, 0.9, found), True)
        model = Method("model", Unlike(world, 0.7, level_s=0.05), False)
        mixture = MixtureProposer([lookup, model], LONGEST, world.costs(), clock=world.clock)
        requests = [make_request([1, 2]) for _ in range(8)]
        world.run(mixture, 8, LONGEST, 200, requests)
        planned.clear()
        return world.run(mixture, 8, LONGEST, rounds, requests)

    rate = run()
    assert len(planned) < 300
    monkeypatch.setattr(Plans, "hold", lambda *_: False)
    assert rate > 0.97 * run()
    assert len(planned) > 3000  # and in each as if there were no lookups


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_a_model_that_has_become_good_is_found_out_within_few_tries(batch):
    world = World(row_s=0.05)
    model = Guess(world, 0.0, level_s=0.15)
    mixture = of_a_model(world, model)
    requests = [make_request([1, 2]) for _ in range(batch)]
    world.run(mixture, batch, LONGEST, 2000, requests)
    tried, model.chance = model.asked, 0.95
    while not mixture._agenda.by_model and model.asked - tried <= 16:
        world.run(mixture, batch, LONGEST, 1, requests)
    assert mixture._agenda.by_model


def test_what_planning_a_try_takes_counts_too(monkeypatch):
    def explored(planning):
        world = World(row_s=10.0)
        mixture = of_a_model(world, Guess(world, 0.0, level_s=5.0))
        plan = mixture.planner.chooser.plan

        def slow(*arguments):
            world.now += planning
            return plan(*arguments)

        mixture.planner.chooser.plan = slow
        world.run(mixture, 2, LONGEST, 4000, [make_request([1, 2]) for _ in range(2)])
        return mixture.model.proposer.asked - FIRST_PROBES

    assert 0 < explored(30.0) < 0.7 * explored(0.0)


def decodes_without_room(mixture, requests):
    """Of a round that is slept over."""
    assert not mixture.may_draft
    return [Decode(request, 0) for request in requests]


@pytest.mark.parametrize("more", [0, 8])
def test_what_changes_where_there_is_no_room_is_planned_for_as_soon_as_there_is_some(made, more):
    world, mixture, requests = hopeless(made, rounds=600)
    while mixture.may_draft:
        world.run(mixture, 8, LONGEST, 1, requests)
    requests = [*requests[: 2 + more], *[make_request([1, 2]) for _ in range(more)]]
    made.clear()
    decodes = decodes_without_room(mixture, requests)
    assert mixture.propose(decodes, alone=True).tokens == [[]] * len(requests)
    assert not made and mixture.may_draft
    world.run(mixture, len(requests), LONGEST, 1, requests)
    assert made == [len(requests)]
    world.run(mixture, len(requests), LONGEST, 8, requests)
    assert len(made) == 1
    assert mixture._agenda.rounds == PLANNED_FOR


@pytest.fixture(params=[0.8, 0.1], ids=["drafts", "idle"])
def planned(request, made):
    """A world, a mixture that drafts or does not, and eight requests for which that was just
    planned."""
    world = World(row_s=10.0 if request.param < 0.5 else 0.01)
    mixture = of_a_model(world, Guess(world, request.param, level_s=0.1))
    requests = [make_request([1, 2]) for _ in range(8)]
    world.run(mixture, 8, LONGEST, 600, requests)
    mixture.costs.explored(1e9)
    made.clear()
    rounds_to_a_plan(world, mixture, requests, made)
    return world, mixture, requests


def test_few_that_are_left_while_somebody_reads_are_planned_for_if_he_does_not_come(planned, made):
    world, mixture, requests = planned
    drafts = mixture._agenda.by_model
    while mixture.may_draft and not drafts:  # it is sleeping, then
        world.run(mixture, 8, LONGEST, 1, requests)
    for _ in range(2):
        draft = mixture.propose(decodes_of(requests[:2]), alone=False)
        assert len(draft.tokens) == 2 and not made
    rounds = rounds_to_a_plan(world, mixture, requests[:2], made)
    assert rounds <= (held(PLANNED_FOR, 8) + 1 if drafts else 2)


def test_what_is_planned_holds_for_many_of_whom_few_were_left_while_others_read(planned, made):
    _, mixture, requests = planned
    mixture.propose(decodes_of(requests[:2]), alone=False)
    draft = mixture.propose(decodes_of(requests), alone=True)
    assert len(draft.tokens) == 8 and not made
    assert not mixture._agenda.passing


def test_a_plan_of_no_drafts_lasts_as_long_where_somebody_comes_just_then(made):
    world, mixture, requests = hopeless(made, rounds=600)
    while mixture._rounds + 1 < mixture._agenda.until:
        world.run(mixture, 8, LONGEST, 1, requests)
    world.run(mixture, 8, LONGEST, 1, [*requests[1:], make_request([1, 2])])
    assert made == [8]
    assert mixture._agenda.rounds == MOST_IDLE


@pytest.mark.parametrize("lost", [True, False])
def test_a_plan_does_not_end_for_a_try_of_what_cannot_draft_for_anybody(made, lost):
    world, mixture, requests = hopeless(made, rounds=600)
    for request in requests:
        request.states_lost = True
    mixture._agenda = mixture._agenda._replace(may_try=False)
    world.run(mixture, 8, LONGEST, PLANNED_FOR, requests)
    other = make_request([1, 2])
    other.states_lost = lost
    mixture.costs.elapse(1e15)
    world.run(mixture, 8, LONGEST, 1, [*requests[1:], other])
    assert (mixture._round is None) == lost  # what a try takes is known behind a timed round alone
    waits = rounds_to_a_plan(world, mixture, [*requests[1:], other], made)
    assert (waits > IDLE_FOR * PLANNED_FOR + 32) == lost
