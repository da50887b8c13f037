"""What a model has to read before it can draft, and what bears that."""

import pytest

from tandem.drafting import Verdict
from tandem.drafting.choosing import Method
from tandem.drafting.costs import READ_ALONG, RoundCosts
from tandem.drafting.gains import Gains
from tandem.drafting.mixture import MixtureProposer
from tandem.drafting.reading import NEVER, Reading
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


def drafted_for():
    """A request, of whose drafts by the model something is known."""
    known = Known([{}])
    Gains(LONGEST).learn(known.gains[0], LONGEST, 1, [1])
    return known


def test_all_that_it_writes_bears_what_is_read_at_first(reading, costs):
    reading.caught_up(drafted_for())
    assert reading.a_token(behind(512), Known([{}]), TO_WRITE, costs) == pytest.approx(1, rel=0.2)


def test_what_is_read_in_passing_costs_nothing(reading, costs):
    assert reading.a_token(behind(READ_ALONG), drafted_for(), TO_WRITE, costs) == 0
    assert reading.a_token(behind(READ_ALONG + 1), drafted_for(), TO_WRITE, costs) > 0


def test_what_is_read_again_and_again_is_borne_by_what_is_written_in_between(reading, costs):
    known = drafted_for()
    for _ in range(50):
        known.stay = 4
        reading.caught_up(known)
        assert not known.stay
    seconds = reading.a_token(behind(64), known, TO_WRITE, costs)
    assert seconds == pytest.approx(64 / 4, rel=0.2)
    seconds = reading.a_token(behind(64), known, 2.0, costs)
    assert seconds == pytest.approx(64 / 2, rel=0.2)


def test_the_first_time_says_nothing_of_others(reading, costs):
    known = Known([{}], stay=1)
    reading.caught_up(known)
    assert reading.a_token(behind(64), drafted_for(), TO_WRITE, costs) < 0.2


def test_a_head_that_has_lost_states_never_catches_up(reading, costs):
    request = behind(64)
    request.states_lost = True
    assert reading.a_token(request, drafted_for(), TO_WRITE, costs) == NEVER


@pytest.mark.parametrize("reads_all", [True, False])
def test_who_looks_at_an_end_alone_reads_nothing(reads_all, costs):
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
    request.computed = request.draft_computed = 500 * reads_all or 500
    if not reads_all:
        request.draft_computed = 0
    world.run(mixture, 1, LONGEST, 200, [request])
    assert mixture.costs.drafts(1, LONGEST)[4] == pytest.approx(1.2, rel=0.1)


def test_tokens_of_rounds_with_its_drafts_are_counted():
    world = World()
    mixture = of_a_model(world, Guess(world, 1.0, level_s=0.01))
    request = make_request([1, 2])
    world.run(mixture, 1, LONGEST, 20, [request])
    mixture.planner.chooser.learn(100)
    assert mixture.planner.requests[request].stay > 40


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
