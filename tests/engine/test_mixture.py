"""Several methods side by side: lossless, and each used where it gains most."""

import random

import pytest

from tandem import SamplingParams
from tandem.drafting.mixture import Method, MixtureProposer
from tests.engine.builders import make_request
from tests.engine.heads import make_head
from tests.engine.policy_world import Guess, World, always_pays, by_whim
from tests.engine.references import hf_greedy

LENGTH = 40
RNG = random.Random(5)
PROMPTS = [RNG.choices(range(96), k=RNG.randrange(2, 30)) for _ in range(6)]
PROMPTS += [[3, 1, 4, 1, 5] * 6, [7, 8] * 10]
MIXTURES = ["ngram,suffix", "ngram,draft_model", "suffix,eagle3", "suffix,ngram,medusa"]


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
            speculative_method=mixture, draft_model=draft, prompt_lookup_min=1, **more, **parameters
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
    for whim in range(2):
        outputs = by_whim(mixed(), whim).generate(PROMPTS, params)
        assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]
        lengths.add(sum(o.stats.drafted for o in outputs))
    assert len(lengths) == 2


LONGEST = 8


def mixed_rate(world, batch, rounds=1000, **methods):
    """Simulated tokens a second and request."""
    guesses = {name: Guess(world, **of) for name, of in methods.items()}
    made = [Method(name, guess, not guess.level_s) for name, guess in guesses.items()]
    mixture = MixtureProposer(made, LONGEST, world.costs(), world.clock)
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
    are all the same here, so that each guess at them is a loss."""
    world = World(row_s)
    alone = [world.rate(batch, k, **part) for part in (model, lookup) for k in range(LONGEST + 1)]
    assert mixed_rate(world, batch, lookup=lookup, model=model) > 0.9 * max(alone)


def test_what_changes_is_noticed():
    """A model that was hopeless and a lookup that was good change places."""
    world = World()
    guesses = {"model": Guess(world, 0.0, level_s=0.1), "lookup": Guess(world, 0.9)}
    methods = [Method(name, guess, name == "lookup") for name, guess in guesses.items()]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), world.clock)
    request = make_request([1, 2])
    before = world.run(mixture, 1, LONGEST, 200, [request])
    guesses["model"].chance, guesses["lookup"].chance = 0.9, 0.0
    world.run(mixture, 1, LONGEST, 600, [request])
    after = world.run(mixture, 1, LONGEST, 200, [request])
    assert before > 2.5
    assert after > 2.0


def test_the_model_reads_nothing_where_lookups_do_well():
    world = World()
    guesses = {"model": Guess(world, 0.5, level_s=0.5), "lookup": Guess(world, 0.95)}
    methods = [Method(name, guess, name == "lookup") for name, guess in guesses.items()]
    mixture = MixtureProposer(methods, LONGEST, world.costs(), world.clock)
    world.run(mixture, 1, LONGEST, 300)
    assert guesses["model"].asked < 15
