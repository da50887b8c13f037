"""Chains drafted in one call are those that the same model drafts level by level."""

from types import SimpleNamespace

import pytest
import torch

from tandem import SamplingParams
from tandem.drafting.draft_model import DraftModel
from tandem.drafting.steps import Level
from tandem.request import SpeculationStats
from tandem.scheduler import Decode
from tandem.verification.noise import coupled_gumbel, row_key
from tandem.verification.scores import Row, scores
from tests.engine.checkpoints import cut_vocabulary
from tests.engine.conftest import without_kernels
from tests.engine.heads import drafting, make_head

METHODS = ("draft_model", "eagle", "eagle3", "eagle31", "mtp")
K = 5
WAYS = (
    SamplingParams(max_tokens=25, num_draft_tokens=0),
    SamplingParams(temperature=0, max_tokens=25),
    SamplingParams(seed=3, max_tokens=25, num_draft_tokens=2),
    SamplingParams(seed=4, max_tokens=25, top_k=20),
    SamplingParams(temperature=0.7, top_p=0.9, max_tokens=25),
    SamplingParams(temperature=1.3, max_tokens=25, num_draft_tokens=1),
    SamplingParams(temperature=0, max_tokens=25, num_draft_tokens=3),
    SamplingParams(temperature=0, max_tokens=25, repetition_penalty=1.3),
    SamplingParams(max_tokens=25, repetition_penalty=0.8, presence_penalty=0.5),
    SamplingParams(seed=5, max_tokens=25, frequency_penalty=1.5, logit_bias={3: 2, 90: 2.5}),
    SamplingParams(temperature=0, max_tokens=25, logit_bias={7: 1.5}, min_tokens=1),
    SamplingParams(
        max_tokens=25, logit_bias={3: 2, 90: 2.5}, repetition_penalty=2, frequency_penalty=0.5
    ),
)


class Watched:
    """A guesser whose chains are drafted a second time, level by level."""

    def __init__(self, proposer):
        self.guesser, self.chains = proposer.guesser, proposer.guesser._chains
        self.rounds = self.sampled = 0
        self.guesser._chains = self
        self.propose = proposer.propose
        proposer.propose = self.proposed
        self.shares = {}
        """What tokens should have been drawn from, by request and depth."""

    def proposed(self, decodes, alone):
        self.shares.clear()
        draft = self.propose(decodes)
        for place, decode in enumerate(decodes):
            for depth in range(len(draft.tokens[place])):
                due = self.shares.get((decode.request.id, depth))
                if due is not None:
                    self.sampled += 1
                    torch.testing.assert_close(draft.q[place, depth], due, atol=1e-6, rtol=1e-4)
                    assert due[draft.tokens[place][depth]] > 0
        return draft

    def __call__(self, draws):
        grown, requests = self.chains(draws), [draw.request for draw in draws.chains]
        found, logits = grown.tokens, self.begin(requests)
        self.rounds += 1
        looked = list(map(len, grown.sure or found))
        for depth in range(max(looked)):
            growing = [b for b, count in enumerate(looked) if count > depth]
            for row, b in enumerate(growing):
                line = logits[row if depth else b]
                if grown.sure:
                    self.check_share(requests[b], found[b], depth, line, grown.sure[b][depth])
                if len(found[b]) > depth:
                    self.check(requests[b], found[b], depth, line)
            longer = [b for b in growing if looked[b] > depth + 1]
            if not longer:
                break
            origins = [growing.index(b) if depth else b for b in longer]
            logits = self.guesser.extend(
                [
                    Level(requests[b], found[b][: depth + 1], range(-1, depth), 1, [row])
                    for b, row in zip(longer, origins, strict=True)
                ]
            )
        return grown

    def begin(self, requests):
        """The logits that the first tokens were drawn from, anew."""
        if isinstance(self.guesser, DraftModel):
            for one in requests:
                assert one.draft_computed == len(one.tokens)
                one.draft_computed -= 1
        return self.guesser.begin([Decode(one, K) for one in requests])

    @staticmethod
    def check_share(request, tokens, depth, logits, found):
        """Of the likeliest token."""
        scored = scores(logits[None], [Row(request, tokens[:depth])])
        assert found == pytest.approx(scored.softmax(-1).max().item(), rel=1e-3)

    def check(self, request, tokens, depth, logits):
        row = Row(request, tokens[:depth])
        scored = scores(logits[None], [row])
        if request.params.greedy:
            assert tokens[depth] == int(scored.argmax())
        elif request.seed is not None:
            noise = coupled_gumbel(
                [row_key(request.seed, row.position)], logits.shape[0], logits.device
            )
            assert tokens[depth] == int((scored + noise).argmax())
        else:
            self.shares[request.id, depth] = scored.softmax(-1)[0]


@pytest.fixture
def watched(engine, good_draft, tmp_path):
    """An engine of a method, and what watches its guesser."""

    def make(method, **more):
        if method == "draft_model":
            parameters = {"draft_model": good_draft}
        else:
            parameters = drafting(method, make_head(tmp_path / method, method))
        one = engine(**parameters, num_speculative_tokens=K, **more)
        return one, Watched(one.proposer)

    return make


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_a_chain_is_what_its_levels_are(watched, method, threads):
    one, watch = watched(method, num_threads=threads)
    prompts = [[7 * i + j for j in range(1, 5 + 9 * i)] for i in range(len(WAYS))]
    one.generate([[t % 96 for t in prompt] for prompt in prompts], list(WAYS))
    assert watch.rounds > 5
    assert watch.sampled > 20


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("least", [0.2, 0.95])
def test_a_chain_ends_where_it_is_not_sure_enough(watched, method, least, monkeypatch):
    one, watch = watched(method)
    confidence, ended = one.proposer.confidence, []
    confidence.open_from(least)

    def checked(draws, draw=watch.chains):
        grown = draw(draws)
        for b, chain in enumerate(draws.chains):
            reach, length = 1.0, 0
            for share in grown.sure[b]:
                reach *= confidence.chance(chain.noise, share)
                length += reach >= least
            assert length == len(grown.tokens[b]) == min(len(grown.sure[b]), length)
            assert len(grown.sure[b]) == min(length + 1, chain.length)
            ended.append(length < chain.length)
        return grown

    monkeypatch.setattr(watch, "chains", checked)
    prompts = [[7 * i + j for j in range(1, 5 + 9 * i)] for i in range(len(WAYS))]
    one.generate([[t % 96 for t in prompt] for prompt in prompts], list(WAYS))
    assert watch.rounds > 5
    assert sum(ended) > 0 if least > 0.9 else sum(ended) < len(ended)


@pytest.mark.parametrize("size", [89, 79, 65])
def test_how_sure_it_is_takes_all_of_a_vocabulary(engine, good_draft, tmp_path, size):
    """Whatever is left beside whole registers."""
    one = engine(draft_model=cut_vocabulary(good_draft, tmp_path / "cut", size))
    one.proposer.confidence.open_from(1e-9)
    draw, seen = one.proposer.guesser._chains, 0

    def checked(draws):
        nonlocal seen
        grown, requests = draw(draws), [draw.request for draw in draws.chains]
        watch = Watched.begin(SimpleNamespace(guesser=one.proposer.guesser), requests)
        for request, found, sure, logits in zip(
            requests, grown.tokens, grown.sure, watch, strict=True
        ):
            Watched.check_share(request, found, 0, logits, sure[0])
            seen += 1
        return grown

    one.proposer.guesser._chains = checked
    one.generate([[1, 2, 3], [4, 5]], [WAYS[1], WAYS[3]])
    assert seen > 5


@pytest.mark.parametrize(
    "banning", [{"min_tokens": 30, "stop_token_ids": [5]}, {"bad_words": ["."]}]
)
def test_beside_a_request_that_bans_tokens_all_are_asked_level_by_level(watched, banning):
    one, watch = watched("draft_model")
    edited = SamplingParams(temperature=0, max_tokens=30, **banning)
    outputs = one.generate([[1, 2, 3], [4, 5]], [edited, WAYS[1]])
    assert not watch.rounds
    assert all(output.stats.drafted for output in outputs)


def test_level_by_level_chains_have_what_is_planned(watched):
    """They do not end by themselves, and are asked for as much as those that do."""
    one, watch = watched("draft_model")
    drafted = {}
    for least in (0.0, 0.01):
        one.proposer.confidence.open_from(least)
        banning = SamplingParams(temperature=0, max_tokens=40, bad_words=["."])
        (output,) = one.generate([[1, 2, 3]], banning)
        drafted[least] = output.stats.drafted / output.stats.rounds
    assert not watch.rounds
    planned = one.proposer.confidence.planned(K)
    assert drafted[0.01] <= planned < K - 1 < drafted[0.0]


def test_a_least_length_bans_nothing_where_no_token_ends_the_text(watched):
    one, watch = watched("draft_model")
    one.generate([[1, 2, 3]], [SamplingParams(temperature=0, max_tokens=30, min_tokens=30)])
    assert watch.rounds > 3


def test_once_the_least_length_is_written_chains_are_drafted_in_one_call(watched):
    one, watch = watched("draft_model")
    params = SamplingParams(temperature=0, max_tokens=30, min_tokens=6, stop_token_ids=[95])
    [output] = one.generate([[1, 2, 3]], [params])
    assert len(output.token_ids) > 15
    assert 0 < watch.rounds < output.stats.rounds


@pytest.mark.parametrize("rule", ["rejection", "block", "coupled"])
@pytest.mark.parametrize("way", ["kernels", "torch"])
@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0}, {}, {"seed": 3, "repetition_penalty": 1.3}, {"presence_penalty": 0.5}],
)
def test_a_draft_that_is_the_target_is_kept_whole(engine, target, rule, way, sampling, monkeypatch):
    """And the target's own token comes behind it."""
    if way == "torch":
        without_kernels(monkeypatch)
    rounds, k = 6, 4
    one = engine(draft_model=target, num_speculative_tokens=k, acceptance_method=rule)
    params = SamplingParams(max_tokens=1 + rounds * (1 + k), **sampling)
    [output] = one.generate([[1, 2, 3]], [params])
    assert output.stats == SpeculationStats(rounds * k, rounds * k, rounds)
