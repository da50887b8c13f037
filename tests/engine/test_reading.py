"""What a model has to read before it can draft, and what bears that."""

import pytest

from tandem.drafting import Draft, Verdict
from tandem.drafting.agenda import NO_PLANS
from tandem.drafting.choosing import Method
from tandem.drafting.costs import READ_ALONG, Load, RoundCosts
from tandem.drafting.mixture import MixtureProposer
from tandem.drafting.parts import Part
from tandem.drafting.reading import FORGOTTEN_BY, NEVER, Reading
from tandem.drafting.remembered import Known
from tandem.scheduler import Decode
from tests.engine.builders import make_request
from tests.engine.policy_world import LONGEST, RIGHT, Guess, World, of_a_model

TO_WRITE = 512.0


@pytest.fixture
def costs():
    """A token takes a second to read."""
    costs = RoundCosts({1: 1.0})
    costs.observe_draft(1, 1, 1000.0 + costs.drafts(1, 1)[1], read=1000)
    assert costs.reading(64) == pytest.approx(64)
    return costs


@pytest.fixture
def reading():
    return Reading(Guess(World(), 0.5, level_s=0.1))


def behind(unread):
    request = make_request([1] * 600)
    request.computed, request.draft_computed = 600, 600 - unread
    return request


def test_what_is_read_in_passing_costs_nothing(reading, costs):
    assert reading.seconds(behind(READ_ALONG), costs) == 0
    assert reading.seconds(behind(64), costs) == pytest.approx(64)


def test_a_head_that_has_lost_states_never_catches_up(reading, costs):
    request = behind(64)
    request.states_lost = True
    assert reading.seconds(request, costs) == NEVER


def drafted_for(stay=0):
    return Known([{}], drafted=True, stay=stay)


def test_what_is_read_again_and_again_is_borne_by_what_is_written_in_between(reading):
    known = drafted_for()
    assert reading.bearing(known, TO_WRITE, 1) == TO_WRITE
    for now in range(1, 51):
        known.stay = 4
        reading.caught_up(known, now, asking=True)
        assert not known.stay
    assert reading.bearing(known, TO_WRITE, 50) == pytest.approx(4)
    assert reading.bearing(known, 2.0, 50) == 2
    assert reading.bearing(Known([{}]), TO_WRITE, 50) == TO_WRITE  # for the first time


@pytest.mark.parametrize("times", [10, 1e4, 1e9])
def test_how_long_a_model_stays_is_forgotten(reading, times):
    known = drafted_for(stay=4)
    reading.caught_up(known, 10, asking=True)
    assert reading.bearing(known, TO_WRITE, 10 + FORGOTTEN_BY) == pytest.approx(8)
    assert reading.bearing(known, TO_WRITE, 10 + int(times) * FORGOTTEN_BY) == TO_WRITE


@pytest.mark.parametrize(("stay", "asking"), [(0, True), (4, False)])
def test_the_first_time_and_what_is_read_in_a_pause_say_nothing(reading, stay, asking):
    known = drafted_for(stay)
    reading.caught_up(known, 10, asking)
    assert not known.stay
    assert reading.bearing(known, TO_WRITE, 10) == TO_WRITE


def test_what_a_model_is_tried_for_says_nothing_either():
    """Beside a lookup."""
    world = World()
    methods = [Method("lookup", Guess(world, 0.95), True)]
    methods.append(Method("model", Guess(world, 0.9, level_s=1.0), False))
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    request = make_request([1] * 100, max_total=10_000)
    request.computed = 100
    world.run(mixture, 1, LONGEST, 100, [request])
    known = mixture.planner.requests[request]
    assert methods[1].proposer.asked
    assert not known.drafted
    assert not known.stay


@pytest.mark.parametrize("reads_all", [True, False])
def test_who_looks_at_an_end_alone_reads_nothing(reads_all):
    proposer = Guess(World(), 0.5, level_s=0.1)
    proposer.reads_all = reads_all
    reading = Reading(proposer)
    assert reading.unread(behind(64)) == 64 * reads_all
    assert Reading(None).unread(behind(64)) == 0


@pytest.mark.parametrize("reads_all", [True, False])
def test_what_its_drafts_take_is_learnt_behind_long_texts(reads_all):
    """Nothing of them is taken for what reading takes, where nothing is read."""
    world = World()
    model = Guess(world, 0.9, level_s=0.3)
    model.reads_all = reads_all
    mixture = of_a_model(world, model)
    request = make_request([1] * 500)
    request.computed, request.draft_computed = 500, 500 * reads_all
    world.run(mixture, 1, LONGEST, 200, [request])
    assert mixture.costs.drafts(1, LONGEST)[4] == pytest.approx(1.2, rel=0.1)


def test_tokens_of_rounds_with_its_drafts_are_counted():
    world = World()
    mixture = of_a_model(world, Guess(world, 1.0, level_s=0.01))
    request = make_request([1, 2])
    begin = world.now
    rate = world.run(mixture, 1, LONGEST, 20, [request])
    written = rate * (world.now - begin)
    assert written - 5 <= mixture.planner.requests[request].stay <= written  # two rounds rest


def test_a_model_alone_reads_once():
    """Others that come and go, and what it was tried for, say nothing of the rest of a text."""
    world = World()
    model = Guess(world, 0.9, level_s=0.3)
    mixture = of_a_model(world, model)
    mixture.costs.observe_draft(1, 1, 2000.0, read=100_000)
    requests = [make_request([1] * 100, max_total=5000) for _ in range(16)]
    for one in requests:
        one.computed = 100
    world.run(mixture, 16, LONGEST, 200, requests)
    asked = model.asked
    world.run(mixture, 1, LONGEST, 100, requests[:1])
    assert model.asked - asked > 80


def test_where_lookups_pause_all_that_is_to_come_bears_what_is_read(costs):
    """For then the model goes on."""
    world = World()
    methods = [Method("lookup", Guess(world, 0.9), True)]
    methods.append(Method("model", Guess(world, 0.9, level_s=0.05), False))
    planner = MixtureProposer(methods, LONGEST, costs, clock=world.clock).planner
    request = behind(64)
    known = planner.known(request)
    known.drafted, known.stay = True, 1
    planner.reading.caught_up(known, 1, asking=True)
    rates = []
    for asking in (True, False):
        decode = Decode(request, LONGEST)
        choice = planner.chooser.choose(decode, known, Load(1, 600), 2, asking)
        rates.append(choice.plan.rate)
    assert rates[0] < rates[1]


def test_what_lookups_yield_is_known_where_the_model_drafts():
    world = World()
    methods = [Method("lookup", Guess(world, 0.9, found=0.1), True)]
    methods.append(Method("model", Guess(world, 0.9, level_s=0.01), False))
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    mixture.lookups.pauses.due = lambda *_: False
    world.run(mixture, 1, LONGEST, 300, [make_request([1, 2], max_total=10_000)])
    assert mixture.planner.found_rate == pytest.approx(1.4, rel=0.2)  # a tenth of some 5


@pytest.mark.parametrize(("reading_s", "drafts"), [(0.001, True), (0.5, False)])
def test_between_lookups_a_model_drafts_where_catching_up_pays(reading_s, drafts):
    """It reads anew behind every stretch that lookups have written."""
    world = World()
    lookup = Guess(world, 1.0, found=0.5)
    model = Guess(world, 0.9, level_s=0.05)
    methods = [Method("lookup", lookup, True), Method("model", model, False)]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    request = make_request([1] * 10, max_total=100_000)
    propose = model.propose

    def reads(decodes, alone=False):
        """As a model does, in its draft."""
        for one, length in decodes:
            if length:
                world.now += reading_s * (one.computed - one.draft_computed)
                one.draft_computed = one.computed
        return propose(decodes, alone)

    model.propose = reads
    asked = 0
    for at in range(3000):
        before = model.asked
        draft = mixture.propose([Decode(request, LONGEST)])
        rows = 1 + len(draft.tokens[0])
        world.now += world.pass_s(rows)
        mixture.passed(rows, world.pass_s(rows))
        kept = [*draft.tokens[0], 0].index(0)
        verdict = Verdict(list(range(1, kept + 1)), [RIGHT] * (kept + 1))
        mixture.observe([Decode(request, LONGEST)], draft, [verdict])
        request.computed += 20 * (kept + 1)  # lookups write far more than the model
        asked += (model.asked > before) * (at >= 2000)
    assert (asked > 100) == drafts
    assert (asked < 20) == (not drafts), asked


def test_what_was_planned_for_lookups_does_not_outlive_a_pause():
    world = World()
    methods = [Method("lookup", Guess(world, 0.9), True)]
    planner = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock).planner
    decodes = [Decode(make_request([1, 2]), LONGEST)]
    planner.lookups.begin(1, decodes)
    planner.found(decodes, 1)
    assert planner.plans != NO_PLANS
    planner.make(None, decodes, 2)
    assert planner.plans == NO_PLANS


def test_what_a_model_saves_is_by_what_lookups_found():
    world = World()
    methods = [Method("lookup", Guess(world, 0.9), True)]
    methods.append(Method("model", Guess(world, 0.9, level_s=0.001), False))
    chooser = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock).planner.chooser
    decode, saves = Decode(make_request([1, 2]), LONGEST), []
    for count in (0, 1):
        known = Known([{}, {}], found=[Part([RIGHT] * count, None)])
        choice = chooser.choose(decode, known, Load(1), 1)
        assert choice.place == 1
        saves.append(choice.saves)
    assert 0 < saves[1] < 0.9 * saves[0]


class InParts(Guess):
    """Reads so many tokens a round, and drafts nothing for who lacks more."""

    most, reading_s = 1000, 0.01

    def propose(self, decodes, alone=False):
        through = []
        for request, lookahead in decodes:
            unread = request.computed - request.draft_computed
            part = min(unread, self.most) if lookahead else 0
            self.world.now += self.reading_s * part
            request.draft_computed += part
            through.append(lookahead if part == unread else 0)
        draft = super().propose([Decode(None, length) for length in through])
        return draft if any(through) else Draft([[] for _ in decodes])


def test_a_long_text_is_read_in_parts():
    """Until its end nothing is drafted, and each part takes what it takes."""
    world = World()
    model = InParts(world, 0.9, level_s=0.1)
    mixture = of_a_model(world, model)
    request = make_request([1] * 5000, max_total=20_000)
    request.computed = 5000
    for left in (4000, 3000, 2000, 1000):
        world.run(mixture, 1, LONGEST, 1, [request])
        assert request.computed - request.draft_computed == left
        known = mixture.planner.requests[request]
        assert not known.drafted
        assert not known.stay
        mixture.watch.learn()
        assert mixture.costs.reading(1000) == pytest.approx(1000 * model.reading_s, rel=0.01)
    world.run(mixture, 1, LONGEST, 1, [request])
    assert known.drafted
    assert known.stay
