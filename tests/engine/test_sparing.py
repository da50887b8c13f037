"""Hidden states from which no head is expected to draft are not kept."""

import random

import pytest
import torch

from tandem import SamplingParams
from tandem.drafting import Computed, Verdict
from tandem.drafting.choosing import Method
from tandem.drafting.costs import Load
from tandem.drafting.held import HeldStates
from tandem.drafting.mixture import MixtureProposer
from tandem.drafting.sparing import FIRST_SPARED, KEEPING, KEPT_FOR, LONGEST_SPARED, Sparing
from tandem.scheduler import Decode, Prefill, StepPlan
from tests.engine.builders import make_request
from tests.engine.heads import make_head, rows_of
from tests.engine.policy_world import (
    LONGEST,
    RIGHT,
    WRONG,
    Guess,
    World,
    always_pays,
    spares_by_whim,
)

METHODS = ["eagle", "eagle3", "mtp", "medusa", "mlp_speculator"]
TAPS = (1,)
RNG = random.Random(5)
PROMPTS = [RNG.choices(range(96), k=RNG.randrange(2, 30)) for _ in range(6)]


def watched(sparing, rounds, running=8, waiting=0, pays=False, first=1):
    """In which of so many rounds no states are kept."""
    found = []
    for now in range(first, first + rounds):
        sparing.look(now, running, waiting, lambda: pays)
        if sparing.spares:
            found.append(now)
    return found


def stretches(rounds):
    """The first of each run of rounds, and how many they are."""
    seen = set(rounds)
    begun = [now for now in rounds if now - 1 not in seen]
    ended = [now + 1 for now in rounds if now + 1 not in seen]
    return [(begin, end - begin) for begin, end in zip(begun, ended, strict=True)]


# -- when --------------------------------------------------------------------------------------


def test_states_are_kept_again_now_and_then():
    found = stretches(watched(Sparing(may_spare=True), 40_000, running=7, waiting=1))
    lengths = [length for _, length in found]
    assert lengths[:3] == [FIRST_SPARED, 2 * FIRST_SPARED, 4 * FIRST_SPARED]
    assert max(lengths) == LONGEST_SPARED
    expected = KEPT_FOR
    for begin, length in found:
        assert begin == expected
        expected = begin + length + KEPT_FOR


def test_they_are_kept_again_for_who_comes():
    sparing = Sparing(may_spare=True)
    assert len(watched(sparing, 9999)) == 9999 - KEPT_FOR + 1
    sparing.look(10_000, 7, 1, lambda: False)
    assert not sparing.spares


def test_a_head_that_looks_at_an_end_alone_is_tried_again_for_those_that_stay():
    found = stretches(watched(Sparing(may_spare=True, reads_all=False), 4000))
    lengths = [length for _, length in found]
    assert lengths[:2] == [FIRST_SPARED, 2 * FIRST_SPARED]


@pytest.mark.parametrize("reads_all", [False, True])
def test_a_mixture_says_what_its_head_looks_at(reads_all):
    world = World()
    head = Guess(world, 0.5, level_s=0.1)
    head.reads_all = reads_all
    mixture = MixtureProposer([Method("head", head, False)], LONGEST, world.costs())
    assert mixture._drafter.sparing._reads_all is reads_all


def test_a_head_that_pays_or_drafts_is_shown_all():
    assert not watched(Sparing(may_spare=True), 1000, pays=True)
    assert not watched(Sparing(may_spare=False), 1000)
    assert not watched(Sparing(may_spare=True), 1000, running=0, waiting=1)


@pytest.mark.parametrize(
    ("every", "share", "kept"), [(1, 1.1, True), (1, 0.9, False), (4, 4.4, True)]
)
def test_what_drafts_save_counts_for_all_rounds(every, share, kept):
    sparing = Sparing(may_spare=True)
    for now in range(1, 10 * KEPT_FOR):
        sparing.drafted(share * KEEPING * (now % every == 0))
        sparing.look(now, 8, 0, lambda: False)
        if sparing.spares:
            break
    assert now == (10 * KEPT_FOR - 1 if kept else KEPT_FOR)


def test_drafts_that_pay_begin_it_all_anew():
    sparing = Sparing(may_spare=True)
    last = watched(sparing, 4000)[-1]
    sparing.look(last + 1, 7, 1, lambda: False)
    sparing.drafted(KEEPING * KEPT_FOR)
    found = watched(sparing, 3 * FIRST_SPARED, 7, 1, first=last + 2)
    assert stretches(found)[0] == (last + 1 + 2 * KEPT_FOR, FIRST_SPARED)


@pytest.mark.parametrize(
    ("running", "waiting", "kept"),
    [(1, 0, True), (0, 1, True), (5, 0, True), (3, 3, False), (6, 0, False), (9, 0, False)],
)
def test_states_are_kept_again_for_fewer_requests(running, waiting, kept):
    """At once, for the first of them too. Those that wait are as good as there."""
    sparing = Sparing(may_spare=True)
    watched(sparing, KEPT_FOR)
    assert sparing.spares
    sparing.look(KEPT_FOR + 1, running, waiting, lambda: False)
    assert sparing.spares is not kept


# -- a mixture ---------------------------------------------------------------------------------


class Service:
    """A head, and requests that come and go."""

    def __init__(self, chance, level_s, found=0.0):
        """found: how often a lookup finds something, which is mostly right."""
        self.world = World(row_s=0.1)
        self.head = Guess(self.world, chance, level_s=level_s)
        self.head.taps = TAPS
        self.head.absorb = lambda computed, features: None
        methods = [Method("eagle3", self.head, False)]
        if found:
            methods.insert(0, Method("lookup", Guess(self.world, 0.95, found), True))
        self.mixture = MixtureProposer(
            methods, LONGEST, self.world.costs(), False, clock=self.world.clock
        )
        self.running, self.age = [], 0

    def run(self, batch, rounds, length=60, room=LONGEST):
        """How many of the passes kept states, and how many rounds drafted."""
        kept = drafted = 0
        for _ in range(rounds):
            self.age += 1
            self.running = [one for one in self.running if len(one.tokens) < length][:batch]
            came = []
            if len(self.running) < batch and (self.age % 2 or not self.running):
                came = [make_request([1, 2])]
            self.mixture.keeps_states(len(self.running), len(came))
            may = room if self.mixture.may_draft else 0
            decodes = [Decode(one, may) for one in self.running]
            draft = self.mixture.propose(decodes)
            pairs = zip(self.running, draft.tokens, strict=True)
            for one, tokens in pairs:
                if tokens and one.states_lost:
                    method = self.mixture.planner.requests[one].taken
                    assert method < len(self.mixture.lookups.methods)
            plan = StepPlan(decodes, [Prefill(one, 2) for one in came])
            taps = self.mixture.taps_of(plan)
            self._pass(plan, draft, taps)
            self.running += came
            kept += taps is not None
            drafted += any(draft.tokens)
        return kept, drafted

    def _pass(self, plan, draft, taps):
        rows = sum(1 + len(one) for one in draft.tokens) + 2 * len(plan.prefills)
        self.world.now += self.world.pass_s(rows)
        self.mixture.passed(rows, self.world.pass_s(rows))
        numbers = [[*tokens, WRONG].index(WRONG) for tokens in draft.tokens]
        verdicts = [Verdict(list(range(1, n + 1)), [RIGHT] * (n + 1)) for n in numbers]
        self.mixture.observe(plan.decodes, draft, verdicts)
        computed = []
        for (request, _), verdict in zip(plan.decodes, verdicts, strict=True):
            computed.append(Computed(request, request.computed, range(len(verdict.tokens))))
            request.computed += len(verdict.tokens)
            request.tokens += verdict.tokens
        for request, length in plan.prefills:
            computed.append(Computed(request, 0, range(length)))
            request.computed, request.tokens = length, [*request.tokens, RIGHT]
        if taps is not None:
            self.mixture.absorb(computed, torch.zeros(rows, 1))


def test_a_head_that_does_not_pay_costs_passes_next_to_nothing():
    service = Service(chance=0.2, level_s=0.5)
    service.run(batch=8, rounds=400)
    kept, drafted = service.run(batch=8, rounds=4000)
    assert kept < 400
    assert drafted < 20


def test_with_fewer_requests_those_that_come_are_drafted_for():
    service = Service(chance=0.8, level_s=0.3)
    kept, _ = service.run(batch=24, rounds=600)
    assert kept < 400
    service.running = []
    kept, drafted = service.run(batch=1, rounds=200)  # the first of them too
    assert drafted > 150
    assert kept == 200


def test_a_head_that_becomes_good_is_found_out():
    service = Service(chance=0.1, level_s=0.2)
    kept, drafted = service.run(batch=8, rounds=1500)
    assert drafted < 100
    assert kept < 700
    service.head.chance = 0.95
    service.run(batch=8, rounds=9000)
    kept, drafted = service.run(batch=8, rounds=200)
    assert (kept, drafted > 150) == (200, True)


def test_a_head_that_drafts_is_shown_all_though_not_for_everybody():
    service = Service(chance=0.8, level_s=0.05)
    service.mixture.planner.chooser.promises = lambda *_: 0.0
    kept, drafted = service.run(batch=4, rounds=600)
    assert (kept, drafted > 500) == (600, True)


@pytest.mark.parametrize(("reads_all", "kept"), [(True, 0), (False, 60)])
def test_where_all_have_lost_theirs_states_are_kept_for_what_needs_no_others(reads_all, kept):
    service = Service(chance=0.8, level_s=0.05)
    service.head.reads_all = reads_all
    service.run(batch=4, rounds=8)
    sparing = service.mixture._drafter.sparing
    sparing.spares, sparing.look = True, lambda *_: None
    assert service.run(batch=4, rounds=40, length=1000) == (0, 1)
    assert not service.mixture._drafter.held._unsorted
    decodes = [Decode(one, LONGEST) for one in service.running]
    service.mixture.planner.make(None, decodes, 100)
    for known in map(service.mixture.planner.known, service.running):
        assert all(not choice.option.gains for choice in known.choices.values())
    sparing.spares = False
    found, drafted = service.run(batch=len(service.running), rounds=60, length=1000)
    assert found == kept
    assert bool(drafted) is not reads_all


@pytest.mark.parametrize("rounds", range(KEPT_FOR - 8, KEPT_FOR, 2))
def test_states_that_are_lost_while_there_is_no_room_are_not_drafted_from_later(
    rounds,
):
    """This head drafts in every round, and saves too little; nor is more expected of it."""
    service = Service(chance=0.8, level_s=0.3)
    service.mixture.planner.chooser.promises = lambda *_: 1.0
    _, drafted = service.run(batch=4, rounds=rounds, length=10_000)
    assert drafted > 50
    service.run(batch=4, rounds=KEPT_FOR + 3 - rounds, length=10_000, room=0)
    assert service.mixture._drafter.sparing.spares
    service.run(batch=4, rounds=20, length=10_000)


@pytest.mark.parametrize(("found", "spared"), [(0.01, False), (0.98, True)])
def test_a_head_has_to_save_time_beside_what_lookups_find(found, spared):
    """This one does beside none, and where they find little."""
    service = Service(chance=0.8, level_s=0.1, found=found)
    service.run(batch=2, rounds=600)
    asked = service.head.asked
    kept, _ = service.run(batch=2, rounds=2000)
    assert (kept < 600) == spared
    assert (service.head.asked - asked > 1500) == (not spared)


def test_what_reading_prompts_takes_counts():
    service = Service(chance=0.8, level_s=0.2)
    service.run(batch=1, rounds=200)
    service.mixture.costs.observe_draft(1, 2, 5.0, read=100)
    long, short = make_request([1] * 200, max_total=210), make_request([1] * 4, max_total=210)
    promises = service.mixture.planner.chooser.promises
    assert promises([short], Load(1, 10)) > 1.1
    assert promises([long], Load(1, 10)) == 1


def test_a_head_that_pays_is_always_shown_all():
    service = Service(chance=0.8, level_s=0.05)
    kept, drafted = service.run(batch=4, rounds=1000)
    assert kept == 1000
    assert drafted > 800


# -- what is lost ------------------------------------------------------------------------------


class Reader(Guess):
    def __init__(self, reads_all):
        super().__init__(World(), 0.5)
        self.reads_all = reads_all
        self.shown = []

    def absorb(self, computed, features):
        self.shown += [(one.request, one.start, len(one.rows)) for one in computed]


def computed_request():
    request = make_request([1, 2, 3])
    request.computed = 100
    return request


@pytest.mark.parametrize("shares_prefixes", [False, True])
def test_of_a_request_with_a_gap_nothing_is_kept(shares_prefixes):
    reader = Reader(reads_all=True)
    held = HeldStates(reader, shares_prefixes)
    lost, other = computed_request(), computed_request()
    features = torch.zeros(8, 1)
    held.add([Computed(lost, 3, [0]), Computed(other, 3, [1])], features)
    held.lose([lost])
    assert not held._unsorted  # nor are whole passes
    held.add([Computed(lost, 5, [0]), Computed(other, 4, [1])], features)
    assert (rows_of(held, lost), rows_of(held, other)) == (0, 2)
    held.add([Computed(lost, 0, range(3))], features)  # as a prompt
    held.show([lost, other])
    assert reader.shown == [(other, 3, 2)]
    assert (lost.states_lost, other.states_lost) == (True, False)


def test_what_takes_a_texts_end_alone_loses_nothing():
    reader = Reader(reads_all=False)
    held = HeldStates(reader, shares_prefixes=False)
    request = computed_request()
    held.add([Computed(request, 3, [0])], torch.zeros(8, 1))
    held.lose([request])
    assert request.states_lost
    held.add([Computed(request, 7, [0])], torch.zeros(8, 1))
    held.show([request])
    assert (reader.shown, request.states_lost) == ([(request, 7, 1)], False)


# -- an engine ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sparing")
    return {method: make_head(folder / method, method) for method in METHODS}


def taps_of_passes(engine):
    """Whether each pass of the target keeps states, from now on."""
    found, forward = [], engine.target.forward

    def run(tokens, queries, rows=None, taps=None, *more):
        found.append(taps is not None)
        return forward(tokens, queries, rows, taps, *more)

    engine.target.forward = run
    return found


@pytest.mark.parametrize("prefixes", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_request_that_comes_later_is_drafted_for_again(engine, heads, method, prefixes):
    """And prompts computed meanwhile are found as prefixes, without the head's KV."""
    make = {
        "speculative_method": method,
        "draft_model": heads[method],
        "adaptive_speculation": True,
        "enable_prefix_caching": prefixes,
        "block_size": 4,
    }
    params = SamplingParams(temperature=0, max_tokens=24)
    fresh = always_pays(engine(**make))
    expected = fresh.generate(PROMPTS, params)
    one = always_pays(engine(**make))
    sparing, passes = one.proposer._drafter.sparing, taps_of_passes(one)
    assert sparing._may_spare
    sparing.spares, sparing.look = True, lambda *_: None
    spared = one.generate(PROMPTS, params)
    adopted, adopt = [], one.blocks.adopt_prefix
    one.blocks.adopt_prefix = lambda *more: adopted.append(adopt(*more))
    assert one.generate(PROMPTS, params)[0].token_ids == spared[0].token_ids
    assert (sum(adopted) > 0) is prefixes
    assert not any(passes)
    assert [output.token_ids for output in spared] == [output.token_ids for output in expected]
    assert not sum(output.stats.drafted for output in spared)
    sparing.spares = False
    again = one.generate(PROMPTS, params)
    assert any(passes)
    assert all(output.stats.drafted for output in again)
    assert [output.token_ids for output in again] == [output.token_ids for output in expected]


@pytest.mark.parametrize("method", METHODS)
def test_a_request_whose_states_are_lost_goes_on(engine, heads, method):
    """Lost in the middle of its text; a seed decides the text all the same."""
    params = [SamplingParams(seed=index, max_tokens=40) for index in range(len(PROMPTS))]
    expected = [output.token_ids for output in engine().generate(PROMPTS, params)]
    one = always_pays(
        engine(
            speculative_method=method,
            draft_model=heads[method],
            adaptive_speculation=True,
            max_num_seqs=3,
            block_size=4,
        )
    )
    propose, lost = one.proposer.propose, []

    def proposed(decodes, alone=False):
        draft = propose(decodes, alone)
        for (request, _), tokens in zip(decodes, draft.tokens, strict=True):
            lost.append(request.states_lost)
            assert not (tokens and lost[-1])
        return draft

    one.proposer.propose = proposed
    for whim in range(4):
        spares_by_whim(one, random.Random(whim))
        outputs = one.generate(PROMPTS, params)
        assert [output.token_ids for output in outputs] == expected
        assert sum(output.stats.drafted for output in outputs)
    assert {True, False} == set(lost)
