"""Several methods side by side: lossless, and each used where it gains most."""

import gc
import random
import statistics
import weakref

import pytest
import torch

from tandem import SamplingParams
from tandem.drafting import Computed, Draft, NoProposer, Verdict, Verified
from tandem.drafting.choosing import Method
from tandem.drafting.gains import Gains
from tandem.drafting.held import MOST_ROWS, MOST_UNSHARED, HeldStates
from tandem.drafting.lengths import tokens_share
from tandem.drafting.mixture import MixtureProposer
from tandem.drafting.parts import Part
from tandem.drafting.resting import FIRST_REST, LONGEST_REST, REST_EVERY, Rests
from tandem.drafting.tree import Node, TreeProposer, _Tree
from tandem.scheduler import Decode
from tests.engine.builders import make_request
from tests.engine.heads import make_head, rows_of
from tests.engine.policy_world import LONGEST, Guess, World, always_pays, by_whim, of_a_model
from tests.engine.references import hf_greedy

LENGTH = 40
RNG = random.Random(5)
PROMPTS = [RNG.choices(range(96), k=RNG.randrange(2, 30)) for _ in range(6)]
PROMPTS += [[3, 1, 4, 1, 5] * 6, [7, 8] * 10]
MIXTURES = ["ngram,suffix", "ngram,draft_model", "suffix,eagle3", "suffix,ngram,medusa"]
MIXTURES += ["suffix", "draft_model"]  # one method, as far as it pays


@pytest.fixture(scope="module")
def drafts(good_draft, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    heads = {name: make_head(folder / name, name) for name in ("eagle3", "medusa")}
    return heads | {"draft_model": good_draft, "ngram": None}


@pytest.fixture(params=[(mixture, tree) for mixture in MIXTURES for tree in (None, 2)], ids=str)
def mixed(request, engine, drafts):
    mixture, tree = request.param
    more = {} if tree is None else {"speculative_tree": tree}
    draft = drafts[mixture.rpartition(",")[2].replace("suffix", "ngram")]

    def make(**parameters):
        return engine(
            speculative_method=mixture,
            draft_model=draft,
            prompt_lookup_min=1,
            adaptive_speculation=True,
            **more,
            **parameters,
        )

    return make


@pytest.mark.parametrize("batch", [1, 5])
def test_greedy_text_is_the_targets_own(mixed, target, batch):
    expected = hf_greedy(target, PROMPTS, LENGTH)
    one = always_pays(mixed(max_num_seqs=batch))
    for _ in range(2):
        outputs = one.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=LENGTH))
        assert [output.token_ids for output in outputs] == expected
    assert sum(output.stats.accepted for output in outputs)


@pytest.mark.parametrize("temperature", [0, 1])
def test_whatever_it_decides_a_seed_decides_the_text(mixed, engine, temperature):
    params = [
        SamplingParams(seed=index, max_tokens=LENGTH, temperature=temperature)
        for index in range(len(PROMPTS))
    ]
    plain = engine().generate(PROMPTS, params)
    lengths = set()
    for whim in range(3):
        outputs = by_whim(mixed(), whim).generate(PROMPTS, params)
        assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]
        lengths.add(sum(o.stats.drafted for o in outputs))
    assert len(lengths) > 1


@pytest.mark.parametrize("settled", [always_pays, lambda engine: by_whim(engine, 1)])
@pytest.mark.parametrize("batch", [1, 4])
def test_a_request_may_name_the_method_that_drafts_for_it(engine, target, drafts, settled, batch):
    one = settled(
        engine(
            speculative_method="ngram,suffix,draft_model",
            draft_model=drafts["draft_model"],
            prompt_lookup_min=1,
            adaptive_speculation=True,
            max_num_seqs=batch,
        )
    )
    mixture, used = one.proposer, set()

    def watched(decodes, alone=False, propose=mixture.propose):
        draft = propose(decodes)
        for (request, _), tokens in zip(decodes, draft.tokens, strict=True):
            if tokens:
                method = mixture._methods[mixture.planner.requests[request].taken]
                used.add((request.params.speculative_method, method.name))
        return draft

    mixture.propose = watched
    methods = ["ngram", "suffix", "draft_model"]
    expected = hf_greedy(target, PROMPTS, LENGTH)
    for name in [*methods, "none", *methods]:
        params = SamplingParams(temperature=0, max_tokens=LENGTH, speculative_method=name)
        outputs = one.generate(PROMPTS, params)
        assert [output.token_ids for output in outputs] == expected
    together = [  # in one batch
        SamplingParams(temperature=0, max_tokens=LENGTH, speculative_method=methods[index % 3])
        for index in range(len(PROMPTS))
    ]
    assert [output.token_ids for output in one.generate(PROMPTS, together)] == expected
    assert used == {(name, name) for name in methods}


def mixed_rate(world, batch, rounds=1000, **methods):
    """Simulated tokens a second and request."""
    guesses = {name: Guess(world, **of) for name, of in methods.items()}
    made = [Method(name, guess, not guess.level_s) for name, guess in guesses.items()]
    mixture = MixtureProposer(made, LONGEST, world.costs(), clock=world.clock)
    return world.run(mixture, batch, LONGEST, rounds)


GOOD_MODEL = {"chance": 0.8, "level_s": 0.1}
DEAR_MODEL = {"chance": 0.8, "level_s": 0.5}
BAD_MODEL = {"chance": 0.05, "level_s": 0.1}
GOOD_LOOKUP = {"chance": 0.9, "found": 0.9}
RARE_LOOKUP = {"chance": 0.9, "found": 0.1}
BAD_LOOKUP = {"chance": 0.1, "found": 1.0}


@pytest.mark.parametrize("row_s", [0.01, 0.3])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("lookup", [GOOD_LOOKUP, RARE_LOOKUP, BAD_LOOKUP], ids=str)
@pytest.mark.parametrize("model", [GOOD_MODEL, DEAR_MODEL, BAD_MODEL], ids=str)
def test_no_part_alone_is_faster(model, lookup, batch, row_s):
    """In a simulation, whatever drafts cost and bring; nor is any fixed length, or none. Chances
    never change here, so that every guess at them is a loss: 2 % on average, 14 % at worst, where
    a dear model would have to draft for all eight requests to pay."""
    world = World(row_s)
    alone = [world.rate(batch, k, **part) for part in (model, lookup) for k in range(LONGEST + 1)]
    assert mixed_rate(world, batch, lookup=lookup, model=model) > 0.85 * max(alone)


def test_what_changes_is_noticed():
    """A model that was hopeless and a lookup that was good change places."""
    world = World()
    guesses = {"model": Guess(world, 0.0, level_s=0.1), "lookup": Guess(world, 0.9)}
    methods = [Method(name, guess, name == "lookup") for name, guess in guesses.items()]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    request = make_request([1, 2])
    before = world.run(mixture, 1, LONGEST, 200, [request])
    guesses["model"].chance, guesses["lookup"].chance = 0.9, 0.0
    world.run(mixture, 1, LONGEST, 600, [request])
    after = world.run(mixture, 1, LONGEST, 200, [request])
    assert before > 2.5
    assert after > 2.0


def test_what_rounds_take_besides_is_learnt():
    """Where it is much, longer drafts pay."""
    world = World(0.4, between_s=4.0)
    best = max(world.rate(1, k, 0.9) for k in range(LONGEST + 1))
    assert mixed_rate(world, 1, lookup={"chance": 0.9}) > 0.97 * best


def test_the_model_reads_nothing_where_lookups_do_well():
    world = World()
    guesses = {"model": Guess(world, 0.5, level_s=0.5), "lookup": Guess(world, 0.95)}
    methods = [Method(name, guess, name == "lookup") for name, guess in guesses.items()]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    world.run(mixture, 1, LONGEST, 300)
    assert guesses["model"].asked < 15


def test_a_model_that_is_tried_now_and_then_is_not_tried_for_who_named_a_lookup():
    world = World()
    guesses = {"model": Guess(world, 0.5, level_s=0.1), "lookup": Guess(world, 0.95)}
    methods = [Method(name, guess, name == "lookup") for name, guess in guesses.items()]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    request = make_request([1, 2], speculative_method="lookup")
    world.run(mixture, 1, LONGEST, 2000, [request])
    assert guesses["model"].asked == 0
    world.run(mixture, 1, LONGEST, 2000, [make_request([1, 2])])
    assert guesses["model"].asked > 0


@pytest.mark.parametrize(("chance", "rests"), [(0.4, True), (0.95, False)])
def test_where_a_model_hardly_pays_some_rounds_go_without_it(chance, rests):
    """What they take is not known otherwise."""
    world = World()
    model = Guess(world, chance, level_s=0.1)
    mixture = of_a_model(world, model)
    world.run(mixture, 1, LONGEST, 500)
    asked = model.asked
    world.run(mixture, 1, LONGEST, 610, [make_request([1, 2])])
    without = 610 - (model.asked - asked)
    assert 6 <= without <= 18 if rests else 1 <= without <= 4


def test_rounds_without_drafts_that_have_become_quicker_are_found_out():
    """Though drafts promise far more than none: it rests on what passes took before."""
    world = World()
    mixture = of_a_model(world, Guess(world, 0.6, level_s=0.02))
    world.pass_s = lambda rows: 2 + 0.01 * rows
    world.run(mixture, 1, LONGEST, 1500)
    rate = world.run(mixture, 1, LONGEST, 500)
    assert rate > 1.3 / world.pass_s(1)
    world.pass_s = lambda rows: 1.0 if rows == 1 else 4.0  # rows are dear now, memory is not
    world.run(mixture, 1, LONGEST, 15_000)
    assert world.run(mixture, 1, LONGEST, 500) > 0.95


def test_the_first_rests_behind_a_pause_come_soon():
    world = World()
    model = Guess(world, 0.35, level_s=0.1)
    mixture = of_a_model(world, model)
    world.run(mixture, 1, LONGEST, 500)
    world.run(mixture, 1, 0, 20)  # no room for a draft
    first, second, *later = rested(world, mixture, model, 60)
    assert FIRST_REST <= first <= FIRST_REST + 1
    assert second == first + 1
    third = second + 2 * FIRST_REST
    assert later == [third, third + 1, third + 1 + 4 * FIRST_REST, third + 2 + 4 * FIRST_REST]


def test_in_a_rest_of_the_model_what_lookups_have_is_not_drafted_either(monkeypatch):
    """It shows what rounds take in which nothing is."""
    world = World()
    lookup = Method("lookup", Guess(world, 0.9, found=0.5), True)
    model = Method("model", Guess(world, 0.8, level_s=0.05), False)
    mixture = MixtureProposer([lookup, model], LONGEST, world.costs(), clock=world.clock)
    requests = [make_request([1, 2]) for _ in range(4)]
    world.run(mixture, 4, LONGEST, 200, requests)
    monkeypatch.setattr(mixture._rests, "due", lambda now, promised: True)
    both = 0
    for _ in range(50):
        draft = mixture.propose([Decode(request, LONGEST) for request in requests])
        agenda = mixture._agenda
        if agenda is not None and any(agenda.asks.lengths):
            assert not any(draft.tokens)
            both += any(part.tokens for part in agenda.parts)
    assert both > 10


@pytest.mark.parametrize("shows", [1, 2, 5, None])
def test_a_rest_goes_on_until_it_has_shown_something_whatever_is_promised_meanwhile(shows):
    """shows: which of its rounds; None: none does."""
    rests, rested = Rests(), []
    for now in range(1, 2000):
        if rests.due(now, 2.0 if now < 250 or now % 5 == 0 else 1.2):
            rested.append(now)
            if shows and len(rested) % shows == 0:
                rests.shown(now)
    last = shows or LONGEST_REST
    begins, ends = rested[::last], rested[last - 1 :: last]
    assert rested[0] in range(251, 256)
    assert all(end - begin == last - 1 for begin, end in zip(begins, ends, strict=False))
    apart = [begin - end for begin, end in zip(begins[1:], ends, strict=False)]
    assert apart[:2] == [pytest.approx(2 * FIRST_REST, abs=1), pytest.approx(4 * FIRST_REST, abs=1)]
    assert max(apart) in range(REST_EVERY, REST_EVERY + 2)


def test_a_round_in_which_requests_come_prolongs_a_rest():
    world = World()
    model = Guess(world, 0.35, level_s=0.1)
    mixture = of_a_model(world, model)
    requests = [make_request([1, 2]) for _ in range(3)]
    world.run(mixture, 2, LONGEST, 500, requests[:2])
    world.run(mixture, 2, 0, 20, requests[:2])  # drafting begins anew
    found = []
    for place in range(FIRST_REST + 8):
        asked, batch = model.asked, 2 + (place % 2 if place < FIRST_REST + 5 else 0)
        world.run(mixture, batch, LONGEST, 1, requests[:batch])
        if model.asked == asked:
            found.append(place)
    assert found[-1] - found[0] == len(found) - 1
    assert FIRST_REST + 5 <= found[-1] <= FIRST_REST + 6


def rested(world, mixture, model, rounds):
    """Rounds, from 0 on, in which the model did not draft."""
    found = []
    request = make_request([1, 2])
    for place in range(rounds):
        asked = model.asked
        world.run(mixture, 1, LONGEST, 1, [request])
        if model.asked == asked:
            found.append(place)
    return found


def test_a_draft_that_few_follow_far_is_timed_as_a_shorter_one():
    world, timed = World(), []
    mixture = of_a_model(world, Guess(world, 0.9, level_s=0.1))
    mixture.costs.observe_draft = lambda requests, levels, *others: timed.append((requests, levels))
    rooms = [4] + [1] * 3
    draft = mixture.propose([Decode(make_request([1, 2]), room) for room in rooms])
    lengths, share = [len(tokens) for tokens in draft.tokens], tokens_share(4)
    assert max(lengths) > 1 == min(lengths)
    mixture.passed(4 + sum(lengths), 1.0)
    mixture.watch.learn()
    assert timed == [(4, pytest.approx((1 - share) * max(lengths) + share * sum(lengths) / 4))]


def test_all_of_a_batch_bear_what_their_model_has_to_read():
    world = World()
    drafted = []
    for batch in (1, 8):
        model = Guess(world, 0.9, level_s=0.1)
        costs = world.costs()
        costs.observe_draft(1, 1, 8.1, 100)  # 8 s, borne by the tokens to come
        costs.observe_draft(1, 1, 0.1, 1)
        mixture = MixtureProposer(
            [Method("model", model, False)], LONGEST, costs, clock=world.clock
        )
        requests = [make_request([1, 2] * 50, max_total=240) for _ in range(batch)]
        for request in requests:
            request.computed = 99
        draft = mixture.propose([Decode(request, LONGEST) for request in requests])
        drafted.append(sum(map(bool, draft.tokens)))
    assert drafted == [1, 1]  # of eight, one tries it


def test_reading_a_prompt_is_not_taken_for_the_time_of_a_draft():
    world = World()
    model = Guess(world, 0.9, level_s=0.1)
    read = []

    def propose(decodes, alone=False, asked=model.propose):
        (decode,) = decodes
        if decode.lookahead and decode.request not in read:
            world.now += 20.0
            read.append(decode.request)
            decode.request.draft_computed = decode.request.computed
        return asked(decodes)

    model.propose = propose
    methods = [Method("lookup", Guess(world, 0.9, found=0.0), True), Method("model", model, False)]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), clock=world.clock)
    request = make_request(list(range(500)))
    request.computed = 499
    world.run(mixture, 1, LONGEST, 40, [request])
    assert model.asked > 30


class Reader(NoProposer):
    """Notes what it is shown."""

    def __init__(self):
        self.shown = []

    def absorb(self, computed, features):
        for request, start, rows in computed:
            self.shown.append((request.id, start, features[list(rows), 0].tolist()))


def held_storage(held, request, features):
    """Whether what is held of a request keeps all of a pass."""
    assert rows_of(held, request)
    return any(part.data_ptr() == features.data_ptr() for part, _ in held._held[request].parts)


def computed_request(prompt):
    """A request whose text was computed as far as any of these passes goes."""
    request = make_request(prompt)
    request.computed = 10_000
    return request


def test_held_states_are_shown_in_order_when_asked_for_or_too_many():
    reader = Reader()
    held = HeldStates(reader, shares_prefixes=True)
    request, other = computed_request([1, 2, 3]), computed_request([1, 2, 3])
    features = torch.arange(300.0)[:, None]
    held.add([Computed(request, 0, range(0, 3))], features)  # its prompt
    assert reader.shown == [(request.id, 0, [0.0, 1.0, 2.0])]
    held.add([Computed(request, 3, [5, 7]), Computed(other, 3, [6])], features)
    held.add([Computed(request, 5, [9])], features)
    assert (rows_of(held, request), rows_of(held, other)) == (3, 1)
    held.show([request])
    assert reader.shown[1:] == [(request.id, 3, [5.0, 7.0, 9.0])]
    assert (rows_of(held, request), rows_of(held, other)) == (0, 1)
    assert not held_storage(held, other, features)  # of a large pass nothing else is kept
    for start in range(4, 3 + MOST_ROWS):
        held.add([Computed(other, start, [start])], features)
    assert rows_of(held, other) == 0
    (_, start, values) = reader.shown[-1]
    assert (start, len(values)) == (3, MOST_ROWS)


@pytest.mark.parametrize(("width", "most"), [(1, MOST_UNSHARED), (1024, 512), (1 << 20, MOST_ROWS)])
def test_wide_states_of_many_requests_are_held_for_fewer_rows(width, most):
    """So that all of them together fit the memory that is left."""
    held = HeldStates(Reader(), shares_prefixes=False, most_requests=128)
    assert held._most(torch.empty(0, width)) == most


def test_of_a_finished_request_nothing_is_held():
    held = HeldStates(Reader(), shares_prefixes=False)
    request, other = computed_request([1]), computed_request([1])
    for start in range(3):
        held.add([Computed(request, start, [0]), Computed(other, start, [1])], torch.zeros(2, 1))
    request.finish_reason = "stop"
    held.add([Computed(request, 3, [0]), Computed(other, 3, [1])], torch.zeros(2, 1))
    gone = weakref.ref(request)
    del request
    gc.collect()
    assert gone() is None
    assert rows_of(held, other) == 4


def test_of_small_passes_only_the_latest_are_kept_whole():
    reader = Reader()
    held = HeldStates(reader, shares_prefixes=False)
    request = computed_request([1])
    passes = [torch.arange(5.0 * index, 5.0 * index + 5)[:, None] for index in range(40)]
    for index, features in enumerate(passes):
        held.add([Computed(request, 2 * index, [1, 3])], features)
    kept = [held_storage(held, request, features) for features in passes]
    assert kept == [False] * 32 + [True] * 8
    held.show([request])
    expected = [5.0 * index + row for index in range(40) for row in (1, 3)]
    assert reader.shown == [(request.id, 0, expected)]


def test_what_many_requests_held_is_shown_in_parts():
    reader = Reader()
    held = HeldStates(reader, shares_prefixes=False)
    shown, absorb = [], reader.absorb
    reader.absorb = lambda computed, features: (
        shown.append(len(features)),
        absorb(computed, features),
    )
    requests = [computed_request([1]) for _ in range(5)]
    features = torch.arange(400.0)[:, None]
    for request in requests:
        held.add([Computed(request, 0, range(400))], features)
    held.show(requests)
    assert shown == [800, 800, 400]
    assert [start for _, start, _ in reader.shown] == [0] * 5
    assert all(values == features[:, 0].tolist() for _, _, values in reader.shown)


def test_where_no_prefix_is_shared_prompts_wait_too():
    reader = Reader()
    held = HeldStates(reader, shares_prefixes=False)
    request = computed_request([1, 2, 3])
    features = torch.arange(100.0)[:, None]
    held.add([Computed(request, 0, range(0, 3))], features)
    held.add([Computed(request, 3, range(3, 90))], features)
    assert (reader.shown, rows_of(held, request)) == ([], 90)
    held.show([request])
    assert reader.shown == [(request.id, 0, features[:90, 0].tolist())]


def test_held_states_begin_anew_where_the_text_was_computed_again():
    """A preempted request's KV is gone: it is read from its first token on."""
    reader = Reader()
    held = HeldStates(reader, shares_prefixes=True)
    request = computed_request([1, 2, 3])
    features = torch.arange(20.0)[:, None]
    held.add([Computed(request, 3, [4])], features)
    held.add([Computed(request, 0, range(0, 5))], features)
    assert rows_of(held, request) == 0
    held.add([Computed(request, 5, [6])], features)
    held.show([request])
    assert reader.shown[-1] == (request.id, 5, [6.0])


def test_of_a_request_that_was_preempted_since_nothing_is_shown():
    """It has no blocks any more, and what the model would read has no place."""
    reader = Reader()
    held = HeldStates(reader, shares_prefixes=True)
    request, other = computed_request([1]), computed_request([1])
    features = torch.zeros(MOST_ROWS, 1)
    held.add([Computed(request, 1, range(MOST_ROWS))], features)
    request.computed = 0
    held.add([Computed(other, 1, range(MOST_ROWS - 1))], features)
    assert (rows_of(held, request), rows_of(held, other)) == (0, MOST_ROWS - 1)
    assert reader.shown == []


def test_the_token_behind_a_cut_is_judged_too_whether_right_or_wrong():
    chain = Part([5, 6, 7], None)
    assert chain.verified(2, Verdict([1, 2], [5, 6, 7])) == (3, [1, 2, 3])
    assert chain.verified(2, Verdict([1, 2], [5, 6, 9])) == (3, [1, 2])
    assert chain.verified(2, Verdict([1], [5, 7])) == (3, [1])
    assert chain.verified(0, Verdict([], [5])) == (1, [1])
    assert chain.verified(3, Verdict([1, 2, 3], [5, 6, 7, 8])) == (3, [1, 2, 3])
    tree = Part([5, 6, 7], [0, 0, 2])
    assert tree.verified(2, Verdict([2], [6, 7])) == (3, [2, 3])
    assert tree.verified(2, Verdict([1], [5, 7])) == (3, [1])


def test_what_was_not_taken_is_judged_as_far_as_the_text_goes_right_or_wrong():
    chain = Part([5, 6, 7], None)
    assert chain.judged([5, 6]) == (2, [1, 2])
    assert chain.judged([5, 9]) == (2, [1])
    assert chain.judged([9]) == (1, [])
    assert chain.judged([5, 6, 7, 8]) == (3, [1, 2, 3])
    assert Part([5, 6, 7], [0, 0, 2]).judged([6]) == (2, [2])


def test_a_dynamic_tree_begins_with_its_likeliest_nodes():
    """What is learnt place by place is learnt of likely and of unlikely ones."""
    tree = _Tree(0, Decode(make_request([1]), 3))
    scores = [(1, -1.0, -1), (2, -0.5, -1), (3, -0.6, 1), (4, -5.0, -1)]
    tree.nodes = [Node(token, score, parent, (), ()) for token, score, parent in scores]
    draft = TreeProposer._draft(None, Draft([[]], [[]]), [tree])
    assert (draft.tokens, draft.parents) == ([[2, 3, 1]], [[0, 1, 0]])


def test_a_pass_is_timed_with_the_prompts_that_it_reads(engine, good_draft):
    one = engine(draft_model=good_draft, adaptive_speculation=True, max_num_batched_tokens=64)
    seen = []
    one.proposer.passed = lambda rows, seconds: seen.append((rows, seconds > 0))
    params = SamplingParams(temperature=0, max_tokens=30, num_draft_tokens=0)
    one.add_request([1, 2, 3], params)
    one.step()
    one.add_request(list(range(40)), params)
    one.step()
    one.step()
    assert seen == [(3, True), (41, True), (2, True)]


def test_a_pass_that_reads_a_prompt_says_nothing_of_others():
    world = World()
    mixture = of_a_model(world, Guess(world, 0.1, level_s=5.0))
    request = make_request([1, 2])
    for _ in range(200):
        mixture.propose([Decode(request, 0)])
        mixture.passed(3, 1.8)
    mixture.propose([Decode(make_request([1, 2]), 0)])
    assert mixture.costs.passes(1)[1] == pytest.approx(1.0)


class OneIsRight(NoProposer):
    """A model whose drafts for one of its requests are right, and for all others wrong."""

    def __init__(self, right):
        self.right = right
        self.asked = []

    def propose(self, decodes, alone=False):
        self.asked.append([one.lookahead for one in decodes])
        return Draft([[one.request is self.right] * one.lookahead for one in decodes])


def test_a_request_that_is_known_has_an_outlook_of_its_own():
    world = World(0.03)
    good, bad = make_request([1, 2]), make_request([1, 2])
    model = OneIsRight(good)
    mixture = of_a_model(world, model)
    world.run(mixture, 2, LONGEST, 200, [good, bad])
    model.asked.clear()
    world.run(mixture, 2, LONGEST, 200, [good, bad])
    of_good, of_bad = zip(*model.asked, strict=True)
    assert min(of_good) >= 6
    # where nothing is drafted what is known fades, and then it is tried as far again
    assert statistics.mean(asked < 3 for asked in of_bad) > 0.4


class InOneLaunch(Guess):
    """A model whose drafts are verified where they are made, where nothing else is to be done."""

    def propose(self, decodes, alone=False):
        draft, begun = super().propose(decodes, alone), self.world.now
        if not alone:
            return draft
        drafting = self.level_s * max(decode.lookahead for decode in decodes)
        self.world.now = begun + 5.0  # the target's pass
        return draft._replace(verified=Verified([], drafting, 5.0))


@pytest.mark.parametrize("alone", [False, True])
def test_what_verified_drafts_took_to_be_verified_is_no_drafting(alone):
    world = World()
    mixture = of_a_model(world, InOneLaunch(world, 0.9, level_s=0.1))
    request = make_request([1, 2])
    for _ in range(60):
        draft = mixture.propose([Decode(request, LONGEST)], alone)
        assert (draft.verified is not None) == (alone and any(draft.tokens))
        mixture.passed(1 + len(draft.tokens[0]), 1.0)
    assert mixture.costs.drafts(1, 4)[4] == pytest.approx(0.4, rel=0.1)


@pytest.mark.parametrize("by_model", [False, True])
def test_rounds_without_a_draft_say_nothing_against_lookups(monkeypatch, by_model):
    faded = []
    monkeypatch.setattr(Gains, "fade", lambda own, rounds: faded.append(rounds))
    world = World(row_s=10.0)
    guess = Guess(world, 0.5, level_s=1.0 if by_model else 0.0)
    mixture = MixtureProposer(
        [Method("one", guess, not by_model)], LONGEST, world.costs(), clock=world.clock
    )
    world.run(mixture, 1, LONGEST, 100, [make_request([1, 2])])
    assert bool(faded) == by_model


@pytest.mark.parametrize(("chance", "drafts"), [(0.5, True), (0.0, False)])
def test_nothing_is_kept_of_requests_that_have_gone(chance, drafts):
    world = World()
    mixture = of_a_model(world, Guess(world, chance, level_s=0.1))
    request = make_request([1, 2])
    world.run(mixture, 1, LONGEST, 300, [request])
    assert (mixture._agenda.idle is None) == drafts
    gone = weakref.ref(request)
    del request
    mixture.propose([])
    gc.collect()
    assert gone() is None
