"""Rounds in which nothing is drafted cost next to nothing: most are neither timed nor planned."""

import pytest

from tandem.drafting.between import NOBODY
from tandem.drafting.resting import AWAKE, NAP, Naps
from tandem.scheduler import Decode
from tests.engine.builders import make_request
from tests.engine.policy_world import LONGEST, Guess, World, of_a_model


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


def test_the_turn_of_rounds():
    naps = Naps()
    turns = []
    for _ in range(2 * (AWAKE + NAP)):
        due = naps.due()
        turns.append((due, None if due else naps.woke()))
    asleep = [(True, None)] * NAP
    assert (
        turns
        == [(False, True)] * AWAKE
        + asleep
        + [(False, False)]
        + [(False, True)] * (AWAKE - 1)
        + asleep
    )


def test_most_rounds_without_drafts_are_not_timed(world, mixture):
    requests = [make_request([1, 2]) for _ in range(4)]
    idle(world, mixture, requests)
    mixture.timed = 0
    world.run(mixture, 4, LONGEST, 400, requests)
    assert 400 * AWAKE / (AWAKE + NAP) <= mixture.timed <= 200


def test_what_they_take_is_known_all_the_same(world, mixture):
    """A nap lies between some that are timed: that is no round's pause."""
    requests = [make_request([1, 2]) for _ in range(4)]
    world.run(mixture, 4, LONGEST, 400, requests)
    mixture.watch.learn()
    between = (NOBODY + 4) * mixture.costs.between._plain  # behind rounds without drafts
    assert between == pytest.approx(world.between_s, rel=0.05)
    assert mixture.costs._elapsed == pytest.approx(400 * world.pass_s(4), rel=0.1)


@pytest.mark.parametrize("change", ["one comes", "one goes", "the last is another", "the first is"])
def test_a_change_ends_a_nap(world, mixture, change):
    requests = [make_request([1, 2]) for _ in range(3)]
    idle(world, mixture, requests)
    decodes = [Decode(request, LONGEST) for request in requests]
    other = Decode(make_request([1, 2]), LONGEST)
    for _ in range(AWAKE + NAP):
        mixture.propose(decodes)
        if mixture._round is None:
            break
        mixture.passed(3, world.pass_s(3))
    assert mixture._round is None
    after = {
        "one comes": [*decodes, other],
        "one goes": decodes[1:],
        "the last is another": [*decodes[:2], other],
        "the first is": [other, *decodes[1:]],
    }[change]
    draft = mixture.propose(after)
    assert mixture._round is not None
    assert len(draft.tokens) == len(after)
