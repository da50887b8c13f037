"""Rounds without drafts that keep known what such rounds take: what ends them, and begins anew."""

import pytest

from tandem.drafting.choosing import Method
from tandem.drafting.costs import Load
from tandem.drafting.mixture import MixtureProposer
from tandem.drafting.resting import FIRST_REST, Rests
from tandem.drafting.stopwatch import Begun
from tests.engine.policy_world import LONGEST, Guess, World, of_a_model


@pytest.mark.parametrize(("rows", "ends"), [(1, True), (3, False)])
def test_a_round_in_which_lookups_drafted_ends_no_rest(rows, ends):
    world = World()
    methods = [Method("lookup", Guess(world, 0.9), True)]
    methods.append(Method("model", Guess(world, 0.9, level_s=0.1), False))
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    now = 2 * FIRST_REST
    assert mixture._rests.due(now, promised=1.0) is False
    now += FIRST_REST
    assert mixture._rests.due(now, promised=1.0)
    mixture._rounds = now
    mixture._round = Begun(Load(1), "", by_model=False, rows=rows)
    mixture.passed(rows, world.pass_s(rows))
    assert mixture._rests.due(now + 1, promised=1.0) is not ends


def test_a_sleep_that_is_broken_off_was_planned_no_further():
    world = World()
    mixture = of_a_model(world, Guess(world, 0.9, level_s=0.1))
    mixture._rounds, mixture._sleeps_until = 10, 30
    mixture._rests._last_planned = 29
    mixture._wake()
    assert mixture._rests._last_planned == 10


@pytest.mark.parametrize("broken_off", [False, True])
def test_what_was_planned_and_did_not_come_is_not_taken_for_drafting(broken_off):
    rests = Rests()
    rests.due(1, promised=2.0)
    assert rests.none_before(25, promised=2.0) == 25
    if broken_off:
        rests.broken_off(2)
    first = next(now for now in range(30, 60) if rests.due(now, promised=1.0))
    assert first == (30 + FIRST_REST if broken_off else 30)
