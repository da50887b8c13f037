"""Rounds in which nothing is drafted cost next to nothing: most are neither timed nor planned."""

import pytest

from tandem.drafting.between import NOBODY
from tandem.drafting.costs import FIRST_PROBES
from tandem.drafting.resting import AWAKE, LONGEST_IDLE, LONGEST_NAP, NAP, Naps
from tandem.scheduler import Decode
from tests.engine.builders import make_request
from tests.engine.policy_world import LONGEST, Guess, World, of_a_model


def decodes_of(requests):
    return [Decode(request, LONGEST) for request in requests]


@pytest.fixture
def world():
    return World(between_s=0.05)


@pytest.fixture
def mixture(world):
    """Of a model that is never right."""
    mixture = of_a_model(world, Guess(world, 0.0, level_s=0.1))
    mixture.timed, ended = 0, mixture.watch.ended

    def counting(*arguments):
        mixture.timed += 1
        return ended(*arguments)

    mixture.watch.ended = counting
    return mixture


def idle(world, mixture, requests):
    """Has it learn that drafts are worth nothing."""
    while mixture._agenda is None or mixture._agenda.idle is None:
        world.run(mixture, 1, LONGEST, 1, requests)


def awake(naps, shows=True, drafting=False):
    """A round that is timed: whether it follows another one."""
    follows = naps.woke()
    naps.timed(drafting, shows)
    return follows


def turn(naps, drafting=False):
    """Rounds that are timed, with whether each follows another, and then those that are not."""
    timed, asleep = [], 0
    while not naps.due(drafting):
        timed.append(awake(naps, drafting=drafting))
    while naps.due(drafting):
        asleep += 1
    return timed, 1 + asleep


@pytest.mark.parametrize(("drafting", "longest"), [(True, LONGEST_NAP), (False, LONGEST_IDLE)])
def test_the_turn_of_rounds(drafting, longest):
    naps = Naps()
    awake(naps, drafting=drafting)
    assert turn(naps, drafting)[1] == NAP
    again = [False] + [True] * (AWAKE - 1)
    lengths = [turn(naps, drafting)[1] for _ in range(6)]
    assert lengths[0] == 2 * NAP
    assert lengths == sorted(lengths) and lengths[-2:] == [longest, longest]
    assert turn(naps, drafting)[0] == again


@pytest.mark.parametrize(("drafting", "behind"), [(True, NAP), (False, 4 * NAP)])
def test_naps_that_are_broken_off_become_short_again_where_there_are_drafts(drafting, behind):
    naps = Naps()
    awake(naps, drafting=drafting)
    for _ in range(2):
        turn(naps, drafting)
    while not naps.due(drafting):
        awake(naps, drafting=drafting)
    assert not awake(naps, drafting=drafting)  # it was long, but something has changed
    assert turn(naps, drafting) == ([True] * (AWAKE - 1), behind)


def test_there_are_none_until_a_round_shows_something():
    """Where requests come and go, few do."""
    naps = Naps()
    for _ in range(20):
        assert not naps.due(drafting=True)
        awake(naps, shows=False, drafting=True)
    awake(naps, drafting=True)
    assert naps.ahead(drafting=True)


def test_rounds_of_the_other_kind_are_timed_first():
    naps = Naps()
    turn(naps)
    assert awake(naps) is False
    assert awake(naps)
    assert naps.ahead(drafting=False)
    assert not naps.due(drafting=True)
    assert turn(naps, drafting=True) == ([True] * AWAKE, NAP)


def test_what_a_batch_that_changes_takes_is_learnt(world):
    """A request goes every fourth round, and another comes in the next."""
    mixture = of_a_model(world, Guess(world, 0.8, level_s=0.1))
    requests = [make_request([1, 2]) for _ in range(8)]
    learnt, observe = [], mixture.costs.observe_draft
    mixture.costs.observe_draft = lambda *one: learnt.append(one[-1]) or observe(*one)
    for _ in range(60):
        world.run(mixture, 7, LONGEST, 1, requests[1:])
        requests = [*requests[1:], make_request([1, 2])]
        world.run(mixture, 8, LONGEST, 3, requests)
    mixture.watch.learn()
    assert 15 < sum(learnt) < 40  # where most rounds are slept over


def test_most_rounds_without_drafts_are_not_timed(world, mixture):
    requests = [make_request([1, 2]) for _ in range(4)]
    idle(world, mixture, requests)
    mixture.timed = 0
    world.run(mixture, 4, LONGEST, 400, requests)
    assert 400 * AWAKE / (AWAKE + LONGEST_IDLE) <= mixture.timed <= 60


def test_rounds_that_idle_need_no_room_for_drafts(world, mixture):
    """Where others are planned there is some again."""
    requests = [make_request([1, 2]) for _ in range(4)]
    for _ in range(FIRST_PROBES + 1):  # the model is not tried
        mixture.costs.explored(1e9)
    idle(world, mixture, requests)
    while mixture.may_draft:
        world.run(mixture, 4, LONGEST, 1, requests)
    made, timed = mixture._agenda.made, list[bool]()
    while not mixture.may_draft:
        assert mixture.propose([Decode(request, 0) for request in requests]).tokens == [[]] * 4
        assert mixture._agenda.made == made
        timed.append(mixture._round is not None)
        mixture.passed(4, world.pass_s(4))
    assert timed.count(False) >= NAP and timed.count(True) >= 2
    assert mixture._rounds + 1 == mixture._agenda.until


def test_what_they_take_is_known_all_the_same(world, mixture):
    """A nap lies between some that are timed: that is no round's pause."""
    requests = [make_request([1, 2]) for _ in range(4)]
    world.run(mixture, 4, LONGEST, 400, requests)
    mixture.watch.learn()
    between = (NOBODY + 4) * mixture.costs.between._plain  # behind rounds without drafts
    assert between == pytest.approx(world.between_s, rel=0.05)
    assert mixture.costs._elapsed == pytest.approx(400 * world.pass_s(4), rel=0.1)


def test_what_planning_takes_is_no_such_rounds_cost(world, mixture, monkeypatch):
    """A plan of no drafts holds for long."""
    requests = [make_request([1, 2]) for _ in range(4)]
    idle(world, mixture, requests)
    plan = mixture.planner.chooser.plan

    def slow(*arguments):
        world.now += 10 * world.between_s
        return plan(*arguments)

    monkeypatch.setattr(mixture.planner.chooser, "plan", slow)
    world.run(mixture, 4, LONGEST, 2000, requests)
    mixture.watch.learn()
    assert mixture.costs.between.of(4) == pytest.approx(world.between_s, rel=0.05)


def test_a_draft_that_is_tried_shows_what_such_rounds_take(world, mixture):
    """It follows a round that was timed."""
    requests = [make_request([1, 2]) for _ in range(4)]
    idle(world, mixture, requests)
    tried = []
    for _ in range(3000):
        world.run(mixture, 4, LONGEST, 1, requests)
        if mixture._round is not None and mixture._round.by_model:
            tried.append(mixture._round.follows)
    assert len(tried) > 3
    assert all(tried)


def test_most_rounds_of_the_same_drafts_are_not_timed_and_what_they_take_is_known(world):
    mixture = of_a_model(world, Guess(world, 0.8, level_s=0.1))
    requests = [make_request([1, 2]) for _ in range(4)]
    world.run(mixture, 4, LONGEST, 40, requests)
    timed, ended = [], mixture.watch.ended
    mixture.watch.ended = lambda *one: timed.append(one) or ended(*one)
    world.run(mixture, 4, LONGEST, 400, requests)
    drafted = [one for one, *_ in timed if one.by_model]
    assert 40 <= len(drafted) <= 160
    assert all(one.rows > 4 for one in drafted)
    mixture.watch.learn()
    length = max(mixture._agenda.asks.lengths)
    assert length > 1
    assert mixture.costs.drafts(4, length)[length] == pytest.approx(0.1 * length, rel=0.1)
    behind = (NOBODY + 4) * mixture.costs.between._drafting
    assert behind == pytest.approx(world.between_s, rel=0.05)


def test_a_draft_that_was_not_timed_is_no_other_rounds(world):
    """Nor that of one behind it in which nothing is drafted."""
    model = Guess(world, 0.8, level_s=0.1)
    mixture = of_a_model(world, model)
    requests = [make_request([1, 2]) for _ in range(4)]
    world.run(mixture, 4, LONGEST, 400, requests)
    known = mixture.costs.drafts(4, 2)[2]
    for naps in (True, False):  # the first round of a nap is the one behind
        while (mixture._round is None) is naps:
            world.run(mixture, 4, LONGEST, 1, requests)
    model.level_s = 50.0
    world.run(mixture, 4, LONGEST, 1, requests)
    assert mixture._round is None
    world.run(mixture, 4, 0, 1, requests)
    assert mixture._round is not None
    mixture.watch.learn()
    assert mixture.costs.drafts(4, 2)[2] == pytest.approx(known)


def asleep(world, mixture, requests):
    """Has it sleep over a round of these."""
    idle(world, mixture, requests)
    decodes = decodes_of(requests)
    for _ in range(AWAKE + NAP):
        mixture.propose(decodes)
        if mixture._round is None:
            break
        mixture.passed(len(requests), world.pass_s(len(requests)))
    assert mixture._round is None
    return decodes


@pytest.mark.parametrize("change", ["one comes", "one goes", "the last is another", "the first is"])
def test_few_who_come_and_go_do_not_end_a_nap(world, mixture, change):
    decodes = asleep(world, mixture, [make_request([1, 2]) for _ in range(3)])
    other = Decode(make_request([1, 2]), LONGEST)
    after = {
        "one comes": [*decodes, other],
        "one goes": decodes[1:],  # and another one reads his prompt
        "the last is another": [*decodes[:2], other],
        "the first is": [other, *decodes[1:]],
    }[change]
    for _ in range(2):
        draft = mixture.propose(after)
        assert mixture._round is None
        assert draft.tokens == [[]] * len(after)


@pytest.mark.parametrize("change", ["far more", "far fewer"])
def test_a_change_of_the_load_ends_a_nap(world, mixture, change):
    decodes = asleep(world, mixture, [make_request([1, 2]) for _ in range(3)])
    others = decodes_of([make_request([1, 2]) for _ in range(3)])
    after = {"far more": [*decodes, *others], "far fewer": decodes[1:]}[change]
    draft = mixture.propose(after, alone=True)
    assert mixture._round is not None
    assert len(draft.tokens) == len(after)


def test_naps_begin_anew_with_plans_for_another_load(world, mixture):
    requests = [make_request([1, 2]) for _ in range(8)]
    world.run(mixture, 2, LONGEST, 1500, requests[:2])
    assert mixture._naps._length == LONGEST_IDLE
    for _ in range(2):  # there may be no room in the first one
        world.run(mixture, 8, LONGEST, 1, requests)
    assert mixture._naps._length == NAP
