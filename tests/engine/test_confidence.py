"""What a draft's probabilities say of whether it is right."""

import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem import SamplingParams
from tandem.drafting.choosing import LESS_FAR, Chooser, Method
from tandem.drafting.confidence import Confidence
from tandem.drafting.costs import Load, RoundCosts
from tandem.drafting.gains import Gains
from tandem.drafting.mixture import MixtureProposer
from tandem.drafting.reading import Reading
from tandem.scheduler import Decode
from tandem.verification.judging import GREEDY, KEYED, RANDOM
from tests.engine.builders import make_request
from tests.engine.policy_world import LONGEST, Guess, World, of_a_model


def taught(noise, chances, rounds=500):
    """By single tokens, each kept with its share's chance."""
    confidence, chance = Confidence(), random.Random(1)
    for _ in range(rounds):
        for share, right in chances.items():
            confidence.learn(noise, [share], 1, chance.random() < right)
    return confidence


@pytest.mark.parametrize("noise", [GREEDY, KEYED, RANDOM])
def test_it_learns_how_often_a_share_is_right(noise):
    """Be the draft too sure, or not sure enough."""
    chances = {0.1: 0.6, 0.5: 0.2, 0.97: 0.4, 1.0: 0.4}
    found = taught(noise, chances)
    for share, right in chances.items():
        assert found.chance(noise, share) == pytest.approx(right, abs=0.1)


def test_kinds_of_draws_are_told_apart():
    found = taught(GREEDY, {0.5: 0.0})
    assert found.chance(GREEDY, 0.5) < 0.05
    assert found.chance(RANDOM, 0.5) > 0.5


def test_tokens_behind_a_wrong_one_say_nothing():
    confidence = Confidence()
    before = confidence.chance(GREEDY, 0.9)
    confidence.learn(GREEDY, [0.1, 0.9, 0.9], 3, 0)
    assert confidence.chance(GREEDY, 0.9) == before
    confidence.learn(GREEDY, [0.1, 0.9], 1, 1)  # it ended there
    assert confidence.chance(GREEDY, 0.9) == before


def test_what_changes_is_noticed():
    confidence = taught(GREEDY, {0.5: 1.0}, rounds=20_000)
    for _ in range(3000):
        confidence.learn(GREEDY, [0.5], 1, 0)
    assert confidence.chance(GREEDY, 0.5) < 0.1


def test_chains_have_their_lengths_unless_something_is_asked_of_them():
    confidence = Confidence()
    assert confidence.gate is None
    confidence.open_from(0.3)
    assert confidence.gate.least == 0.3
    confidence.open_from(0.0)
    assert confidence.gate is None


def test_fewer_tokens_that_are_drafted_have_what_is_kept_of_all():
    """A third of those that were asked for, and of what would have been kept nine tenths."""
    confidence, gains = Confidence(), [0.9, 0.7, 0.5, 0.4, 0.3, 0.2]
    for _ in range(2000):
        confidence.ended(6, 2, 9, 10.0)
    found = confidence.squeezed(gains)
    assert len(found) == 2
    assert found == sorted(found, reverse=True)
    assert sum(found) == pytest.approx(0.9 * sum(gains), rel=0.01)
    assert found[0] == pytest.approx(0.9 * sum(gains[:3]), rel=0.01)


def test_drafts_that_never_begin_are_some_share_still():
    confidence = Confidence()
    for _ in range(200_000):
        confidence.ended(8, 0, 0, 0.0)
    assert 0 < confidence.drafted < 0.05
    assert len(confidence.squeezed([0.5] * 8)) == 1


def test_gains_are_those_of_drafts_that_do_not_end():
    """Of four tokens a place, each right by a chance that is known before; a draft ends where it is
    too small."""
    cut, whole = Gains(4), Gains(4)
    draws = random.Random(2)
    for _ in range(4000):
        chances = [draws.choice([0.3, 0.9]) for _ in range(4)]
        right = [draws.random() < chance for chance in chances]
        kept = [*right, False].index(False)
        whole.learn({}, 4, 4, range(1, kept + 1))
        ends = [*(chance < 0.5 for chance in chances), True].index(True)
        found = min(kept, ends)
        beyond = [0.3 * 0.6**more for more in range(4 - ends)]
        cut.learn({}, 4, ends, range(1, found + 1), beyond)
    assert cut.expected({}, 4) == pytest.approx(whole.expected({}, 4), abs=0.04)


@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 1}, {}], ids=str)
def test_a_draft_that_is_broken_is_sure_of_nothing(engine, target, tmp_path, params):
    """It gives no numbers."""
    folder = Path(shutil.copytree(target, tmp_path / "broken"))
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][:] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    one = engine(draft_model=folder)
    one.proposer.confidence.open_from(0.9)
    (output,) = one.generate([[1, 2, 3]], SamplingParams(max_tokens=20, **params))
    assert len(output.token_ids) == 20
    one.check_integrity()


def test_drafts_that_end_early_are_asked_for_less_than_what_is_planned_would_take():
    guess = Guess(World(), 0.5, sure=True)
    chooser = Chooser([Method("model", guess, False)], LONGEST, RoundCosts(), Reading(None))
    for _ in range(2000):
        guess.confidence.ended(8, 4, 4, 4)
    assert chooser.further(LONGEST).times == pytest.approx(2 * LESS_FAR, rel=0.05)
    for _ in range(2000):
        guess.confidence.ended(8, 8, 8, 8)
    assert chooser.further(LONGEST).times == 1
    guess.confidence = None
    assert chooser.further(LONGEST).times == 1


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("row_s", [0.03, 0.15])
def test_drafts_that_end_by_themselves_are_worth_it(batch, row_s):
    """In a simulation, whose drafts know how often they are right, though not by what share."""
    rates = {}
    for gated in (False, True):
        world = World(row_s)
        guess = Guess(world, 0.75, level_s=0.02, sure=True)
        if not gated:
            guess.confidence = None
        rates[gated] = world.run(of_a_model(world, guess), batch, LONGEST, 3000 // batch)
    assert rates[True] > 1.03 * rates[False]


def test_where_first_rows_are_dear_and_the_next_ones_free_a_token_is_worth_drafting_there():
    """A draft mostly ends in its second half, if it does: what that adds decides."""
    world = World()
    methods = [Method("model", Guess(world, 0.5, level_s=0.0), False)]
    costs = RoundCosts({1: 1.0, 5: 3.0, 9: 3.0, 4096: 3.0})
    costs.observe_draft(1, 1, 1e-9, read=0)
    chooser = Chooser(methods, LONGEST, costs, Reading(None))
    assert chooser.worth(1.0, [8], Load(1)) < 0.02
    assert chooser.worth(1.0, [4], Load(1)) > 0.4


def test_where_nothing_costs_anything_a_draft_may_still_end_and_its_shares_are_seen():
    costs = RoundCosts({1: 1.0, 4096: 1.0})
    costs.observe_draft(1, 1, 1e-9, read=0)
    costs.drafts = lambda requests, most: [0.0] * (most + 1)
    methods = [Method("model", Guess(World(), 0.5), False)]
    assert 0 < Chooser(methods, LONGEST, costs, Reading(None)).worth(1.0, [8], Load(1)) < 1e-6


def test_what_was_not_drafted_counts_only_behind_a_draft_that_was_kept_whole():
    whole, cut = Gains(4), Gains(4)
    for gains, kept in ((whole, [1, 2]), (cut, [1])):
        for _ in range(50):
            gains.learn({}, 4, 2, kept, [0.9, 0.9])
    assert whole.expected({}, 4)[2] > 0.7
    assert cut.expected({}, 4)[2] < 0.1


def test_a_token_is_worth_what_the_planned_ones_cost_not_those_that_are_asked_for_beside():
    """More is asked for than is planned, for where a draft is sure it may go on."""
    world = World()
    costs = RoundCosts({1: 1.0, 7: 1.2, 8: 4.0, 17: 30.0, 4096: 9000.0})
    costs.observe_draft(1, 1, 1e-9, read=0)
    model = Method("model", Guess(world, 0.9, level_s=0.0, sure=True), False)
    mixture = MixtureProposer([model], 2 * LONGEST, costs, clock=world.clock)
    agenda = mixture.planner.make(None, [Decode(make_request([1, 2]), 2 * LONGEST)], 1)
    assert agenda.asks.lengths[0] >= 7 > agenda.plan.lengths[0] > 0
    assert 0 < agenda.worth < 0.2
