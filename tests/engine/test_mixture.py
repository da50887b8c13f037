"""Several methods side by side: lossless, and each used where it gains most."""

import random

import pytest

from tandem import SamplingParams
from tandem.drafting import Draft, Proposer, Verdict
from tandem.drafting.costs import RoundCosts
from tandem.drafting.mixture import Method, MixtureProposer
from tandem.scheduler import Decode
from tests.engine.builders import make_request
from tests.engine.heads import make_head
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
    one = mixed(max_num_seqs=batch)
    for _ in range(2):
        outputs = one.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=LENGTH))
        assert [output.token_ids for output in outputs] == expected
    assert sum(output.stats.accepted for output in outputs)


def test_a_seed_decides_the_text(mixed, engine):
    params = [SamplingParams(seed=index, max_tokens=LENGTH) for index in range(len(PROMPTS))]
    plain = engine().generate(PROMPTS, params)
    outputs = mixed().generate(PROMPTS, params)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]


class Scripted(Proposer):
    """Proposes as many tokens as it is told."""

    def __init__(self, count):
        self.count = count
        self.asked = 0

    def propose(self, decodes):
        self.asked += sum(decode.lookahead > 0 for decode in decodes)
        return Draft([[1] * min(self.count, decode.lookahead) for decode in decodes])


def rounds(mixture, request, kept, count):
    """Lengths of the drafts of some rounds, of which a share is kept."""
    lengths = []
    for _ in range(count):
        draft = mixture.propose([Decode(request, 8)])
        lengths.append(len(draft.tokens[0]))
        accepted = int(kept(lengths[-1]) * lengths[-1])
        mixture.observe(request, lengths[-1], Verdict(list(range(1, accepted + 1)), [1]))
    return lengths


def test_a_long_lookup_is_taken_and_a_short_one_is_not():
    for lookup, chosen in ((8, 8), (1, 6)):
        model = Scripted(6)
        methods = [Method("suffix", Scripted(lookup), True), Method("eagle", model, False)]
        mixture = MixtureProposer(methods, clock=lambda: 0.0)
        assert rounds(mixture, make_request([1, 2]), lambda length: 0.6, 3) == [chosen] * 3
        assert bool(model.asked) == (chosen == 6)


def test_a_model_that_failed_at_first_is_tried_again():
    methods = [Method("ngram", Scripted(0), True), Method("eagle", Scripted(4), False)]
    mixture = MixtureProposer(methods, clock=lambda: 0.0)
    request = make_request([1, 2])
    assert 0 in rounds(mixture, request, lambda length: 0.0, 60)
    assert rounds(mixture, request, lambda length: 1.0, 80)[-20:] == [4] * 20


def test_a_lookup_that_is_mostly_wrong_gives_way():
    methods = [Method("ngram", Scripted(8), True), Method("eagle", Scripted(4), False)]
    mixture = MixtureProposer(methods, clock=lambda: 0.0)
    lengths = rounds(mixture, make_request([1, 2]), lambda length: 0.0 if length == 8 else 0.9, 12)
    assert lengths[0] == 8
    assert lengths[-4:] == [4] * 4


def test_costs_are_learnt_by_size():
    costs = RoundCosts()
    assert costs.of_pass(5) == pytest.approx(1.2)  # nothing is known yet
    for _ in range(50):
        costs.observe_pass(1, 2.0)
        costs.observe_pass(8, 3.0)
        costs.observe_draft(0.5)
    assert costs.of_pass(1) == pytest.approx(2.0)
    assert costs.of_pass(6) == pytest.approx(3.0)
    assert 3.0 < costs.of_pass(16) < 6.0
    assert costs.of_draft() == pytest.approx(0.5)
    costs.observe_pass(1, 1000.0)  # with a prompt in it
    assert costs.of_pass(1) < 2.5


def test_a_model_whose_draft_takes_too_long_is_not_asked():
    """The same drafts; only the clock says which of them pays."""
    chosen = {}
    for draft_s in (0.1, 5.0):
        now = [0.0]

        class Slow(Scripted):
            def propose(self, decodes, seconds=draft_s, now=now):
                now[0] += seconds * any(decode.lookahead for decode in decodes)
                return super().propose(decodes)

        methods = [Method("ngram", Scripted(3), True), Method("eagle", Slow(6), False)]
        mixture = MixtureProposer(methods, clock=lambda now=now: now[0])
        request = make_request([1, 2])
        lengths = []
        for _ in range(12):
            draft = mixture.propose([Decode(request, 8)])
            lengths.append(len(draft.tokens[0]))
            now[0] += 1.0
            mixture.observe(request, lengths[-1], Verdict(list(range(1, lengths[-1])), [1]))
        chosen[draft_s] = lengths[-1]
    assert chosen == {0.1: 6, 5.0: 3}
