"""Texts that a model guesses well for a while, and then badly: behind many right tokens it drafts
further."""

import pytest

from tandem.drafting import Draft, Verdict
from tandem.drafting.asking import wanted
from tandem.drafting.choosing import Chooser, Method
from tandem.drafting.costs import Load
from tandem.drafting.mixture import MixtureProposer
from tandem.drafting.reading import Reading
from tandem.drafting.remembered import STREAK, Fared, Judged, Known
from tandem.drafting.stopwatch import Begun
from tandem.scheduler import Decode
from tests.engine.builders import make_request
from tests.engine.policy_world import RIGHT, WRONG, Guess, World
from tests.engine.test_blocks import A_BLOCK, Blocks

LONGEST = 16
GOOD, BAD = 80, 30  # tokens of a stretch


class Stretches(Guess):
    """Right throughout a good stretch, and by chance in a bad one."""

    def __init__(self, world, chance):
        super().__init__(world, chance, level_s=0.05)
        self.written = {}
        self.drafts = []
        """Whether in a good stretch, and tokens asked for."""

    def propose(self, decodes, alone=False):
        self.world.now += self.level_s * max(one.lookahead for one in decodes)
        drafts = []
        for request, count in decodes:
            place = self.written.setdefault(request, 0) % (GOOD + BAD)
            self.drafts.append((STREAK + LONGEST < place < GOOD, count))
            places = range(place, place + count)
            drafts.append([RIGHT if self._is_right(one) else WRONG for one in places])
        return Draft(drafts)

    def _is_right(self, place):
        return place % (GOOD + BAD) < GOOD or self.world.random.random() < self.chance

    def observe(self, decodes, draft, verdicts):
        for (request, _), verdict in zip(decodes, verdicts, strict=True):
            self.written[request] = self.written.get(request, 0) + len(verdict.tokens)


def simulated(batch, far, rounds=2500):
    """Tokens a second and request, and the model. far: whether drafts go further on streaks."""
    world = World(0.07)
    model = Stretches(world, 0.3)
    methods = [Method("model", model, False)]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    if not far:
        mixture.planner.chooser.far = lambda *_: 0
    requests = [make_request([1, 2]) for _ in range(batch)]
    world.run(mixture, batch, LONGEST, rounds, requests)
    model.drafts.clear()
    return world.run(mixture, batch, LONGEST, rounds, requests), model


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_on_a_streak_drafts_go_further_and_that_pays(batch):
    rate, model = simulated(batch, far=True)
    asked = {
        good: [count for well, count in model.drafts if well == good] for good in (True, False)
    }
    means = {good: sum(counts) / len(counts) for good, counts in asked.items()}
    assert means[True] > 1.3 * means[False]
    assert rate > 1.01 * simulated(batch, far=False)[0]


def test_a_streak_begins_behind_many_right_tokens_and_ends_with_a_wrong_one():
    known = Known([{}], wish=3)
    assert not known.drew(written=STREAK - 1, depth=STREAK - 2)
    assert known.wants(far=7) == 3
    assert not known.drew(written=1, depth=0) and not known.on_streak  # nothing was drafted
    assert known.drew(written=2, depth=1) and known.on_streak
    assert (known.wants(far=7), known.wants(far=2)) == (7, 3)
    assert not known.drew(written=4, depth=3) and known.on_streak
    assert known.drew(written=3, depth=3) and not known.on_streak
    assert known.wants(far=7) == 3


def test_it_begins_and_ends_in_rounds_that_are_not_looked_at():
    world = World(0.07)
    methods = [Method("model", Guess(world, 0.7, level_s=0.05), False)]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    request = make_request([1, 2])
    world.run(mixture, 1, LONGEST, 200, [request])
    while mixture._sleeps_until < mixture._rounds + 4:
        world.run(mixture, 1, LONGEST, 1, [request])
    known, drafter, made = mixture.planner.requests[request], mixture._drafter, mixture._agenda.made
    mixture._agenda = mixture._agenda._replace(far=13)
    for streak in (STREAK, 0):
        known.streak, drafter.turned, drafter.observe = streak, True, lambda *_: None
        world.run(mixture, 1, LONGEST, 1, [request])
        asked, before = (13, known.wish) if streak else (known.wish, 0)
        assert (list(drafter.asked), list(drafter.streaks)) == ([asked], [before])
        assert mixture._agenda.made == made and not drafter.turned


def test_where_all_drafts_are_as_long_as_the_longest_none_goes_further():
    chooser = chooser_of(World(0.0))
    chooser._on_streaks.learn(None, LONGEST, LONGEST, range(1, LONGEST + 1))
    assert chooser.far(1.0, [3, 3], Load(2)) > 3
    chooser._methods[-1].proposer.pads = True
    assert chooser.far(1.0, [3, 3], Load(2)) == 0
    assert chooser.far(1.0, [3], Load(1)) > 3


def test_levels_that_others_draft_anyway_cost_it_nothing_and_deeper_ones_nearly_all():
    chooser = chooser_of(World(0.0))  # where rows do not either
    for _ in range(100):
        chooser._on_streaks.learn(None, LONGEST, LONGEST, range(1, LONGEST + 1))
    assert chooser.far(40.0, [2, 8], Load(2)) == 8
    assert chooser.far(40.0, [3], Load(1)) == 0
    assert chooser.far(10.0, [2, 8], Load(2)) > 8


def test_those_on_a_streak_begin_no_other_block_of_rows():
    world = Blocks()
    methods = [Method("model", Guess(world, 0.4, level_s=0.05), False)]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    mixture.planner.chooser.far = lambda *_: LONGEST
    request = make_request([1, 2])
    world.run(mixture, 1, LONGEST, 200, [request])
    while not mixture._agenda.by_model:
        world.run(mixture, 1, LONGEST, 1, [request])
    assert mixture._agenda.asks.lengths[0] < LONGEST // 2
    mixture.planner.known(request).streak, mixture._drafter.turned = STREAK, True
    mixture._turn()
    assert mixture._agenda.asks.lengths == [A_BLOCK - 1]


def test_what_became_of_a_draft_as_if_fewer_had_been_asked_for():
    fared = Fared(8, 3, [1, 2, 3], [0.5, 0.4, 0.3])
    assert fared.whole == pytest.approx(4.2)
    assert fared.upto(8) is fared
    assert fared.upto(5) == Fared(5, 3, [1, 2, 3], [0.5, 0.4])
    assert fared.upto(2) == Fared(2, 2, [1, 2], [])
    assert Fared(8, 3, [1, 2], [0.5]).whole == 2


def test_where_nothing_is_wanted_a_streak_changes_nothing():
    assert Known([{}], wish=0, streak=STREAK).wants(far=7) == 0


def test_there_must_be_room_for_what_is_wanted():
    requests = [Known([{}], wish=2, streak=streak) for streak in (STREAK, 0, STREAK)]
    decodes = [Decode(make_request([1, 2]), room) for room in (12, 12, 5)]
    asks = wanted(decodes, requests, far=9, most=99)
    assert (asks.lengths, asks.streaks) == ([9, 2, 5], [2, 0, 2])
    assert wanted(decodes, requests, far=9, most=10).lengths == [4, 2, 4]
    decodes[0].request.states_lost = True
    assert wanted(decodes, requests, far=9, most=99).lengths == [0, 2, 5]


def chooser_of(world):
    methods = [Method("model", Guess(world, 0.5, level_s=0.1), False)]
    return Chooser(methods, LONGEST, world.costs(), Reading(None))


def test_others_are_judged_by_no_more_of_it_than_would_have_been_asked_for():
    """Long drafts are of those who do well."""
    found = []
    for asked in (12, 3):
        chooser, known = chooser_of(World()), Known([{}])
        verdict = Verdict(list(range(1, asked + 1)), [RIGHT] * (asked + 1))
        streaks = [3] if asked > 3 else [0]
        one = Judged(1, [known], [], [], [[RIGHT] * asked], [verdict], [asked], streaks, ())
        for now in range(40):
            chooser.judged(one._replace(now=now))
        chooser.learn(40)
        found.append((chooser._gains[-1].expected(known.gains[-1], LONGEST), chooser))
    (gains, streaked), (usual, _) = found
    assert gains == usual
    assert streaked._on_streaks.expected({}, LONGEST)[11] > max(0.8, gains[11])


@pytest.mark.parametrize("chance", [0.97, 0.3])
def test_how_far_is_that_which_yields_most(chance):
    """As drafts of a streak fare, beside others' that are planned."""
    world = World(0.07)
    chooser, known = chooser_of(world), Known([{}])
    for now in range(600):
        kept = 0
        while kept < LONGEST and world.random.random() < chance:
            kept += 1
        verdict = Verdict(list(range(1, kept + 1)), [RIGHT] * (kept + 1))
        tokens = [[RIGHT] * LONGEST]
        chooser.judged(Judged(now, [known], [], [], tokens, [verdict], [LONGEST], [3], ()))
    chooser.learn(600)
    drafts, rate = chooser._costs.drafts(1, LONGEST), 2.0

    def worth(length):
        tokens = sum(chance**place for place in range(1, length + 1))
        return tokens - rate * (world.pass_s(1 + length) + drafts[length])

    best = max(range(3, LONGEST + 1), key=worth)
    far = chooser.far(rate, [3], Load(1))
    assert abs(max(3, far) - best) <= 1


def beside_a_pass():
    """A mixture that is to plan beside the pass of the round under way, and its request."""
    world = World(0.07)
    methods = [Method("model", Guess(world, 0.7, level_s=0.05), False)]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    request = make_request([1, 2])
    world.run(mixture, 1, LONGEST, 200, [request])
    while mixture.meanwhile is None:
        mixture.propose([Decode(request, LONGEST)], alone=True)
    return world, mixture, request


def test_one_that_begins_in_a_round_beside_which_the_next_was_planned_counts_in_it():
    _, mixture, request = beside_a_pass()
    mixture.meanwhile()
    mixture._coming = coming = mixture._coming._replace(far=13)
    mixture.planner.requests[request].streak, mixture._drafter.turned = STREAK, True
    mixture.propose([Decode(request, LONGEST)], alone=True)
    assert (mixture._agenda.made, list(mixture._drafter.asked)) == (coming.made, [13])


def test_a_pass_beside_which_is_planned_does_not_show_what_passes_take():
    _, mixture, _ = beside_a_pass()
    begun = Begun(Load(1), "some", True, 4)
    mixture.watch.ended(begun, 4, 1.0)
    assert mixture.watch.ended(begun, 4, 1.0)
    assert not mixture.watch.ended(begun._replace(ahead=True), 4, 1.0)


def test_where_lookups_may_be_asked_nothing_is_planned_beforehand():
    world, mixture, _ = beside_a_pass()
    mixture.lookups.methods = [Method("lookup", Guess(world, 0.7), True)]
    assert mixture.meanwhile is None
