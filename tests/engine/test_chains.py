"""Chains drafted in one call are those that the same model drafts level by level."""

import pytest
import torch

from tandem import SamplingParams
from tandem.drafting.steps import Level
from tandem.verification.noise import coupled_gumbel, row_key
from tandem.verification.scores import Row, scores
from tests.engine.heads import drafting, make_head

METHODS = ("draft_model", "eagle", "eagle3", "eagle31", "mtp")
K = 5
WAYS = (
    SamplingParams(temperature=0, max_tokens=25),
    SamplingParams(seed=3, max_tokens=25, num_draft_tokens=2),
    SamplingParams(seed=4, max_tokens=25, top_k=20),
    SamplingParams(temperature=0.7, top_p=0.9, max_tokens=25),
    SamplingParams(temperature=1.3, max_tokens=25, num_draft_tokens=1),
    SamplingParams(temperature=0, max_tokens=25, num_draft_tokens=3),
)


class Watched:
    """A guesser whose chains are drafted a second time, level by level."""

    def __init__(self, guesser):
        self.guesser, self.chains = guesser, guesser.chains
        self.rounds = 0
        guesser.chains = self

    def __call__(self, logits, requests, draws):
        found = self.chains(logits, requests, draws)
        self.rounds += 1
        for depth in range(max(map(len, found))):
            growing = [b for b, tokens in enumerate(found) if len(tokens) > depth]
            for row, b in enumerate(growing):
                line = logits[row if depth else b]
                self.check(requests[b], draws, b, found[b], depth, line)
            longer = [b for b in growing if len(found[b]) > depth + 1]
            if not longer:
                break
            origins = [growing.index(b) if depth else b for b in longer]
            logits = self.guesser.extend(
                [
                    Level(requests[b], found[b][: depth + 1], range(-1, depth), 1, [row])
                    for b, row in zip(longer, origins, strict=True)
                ]
            )
        return found

    @staticmethod
    def check(request, draws, b, tokens, depth, logits):
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
            q = draws.q.flatten(0, 1)[draws.chains[b].q_row + depth]
            torch.testing.assert_close(q, scored.softmax(-1)[0], atol=1e-6, rtol=1e-4)
            assert q[tokens[depth]] > 0


@pytest.fixture
def watched(engine, good_draft, tmp_path):
    """An engine of a method, and what watches its guesser."""

    def make(method, **more):
        if method == "draft_model":
            parameters = {"draft_model": good_draft}
        else:
            parameters = drafting(method, make_head(tmp_path / method, method))
        one = engine(**parameters, num_speculative_tokens=K, **more)
        return one, Watched(one.proposer.guesser)

    return make


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_a_chain_is_what_its_levels_are(watched, method, threads):
    one, watch = watched(method, num_threads=threads)
    prompts = [[7 * i + j for j in range(1, 5 + 9 * i)] for i in range(len(WAYS))]
    one.generate([[t % 96 for t in prompt] for prompt in prompts], list(WAYS))
    assert watch.rounds > 5


def test_beside_a_request_that_edits_logits_all_are_asked_level_by_level(watched):
    one, watch = watched("draft_model")
    edited = SamplingParams(temperature=0, max_tokens=30, repetition_penalty=1.2)
    outputs = one.generate([[1, 2, 3], [4, 5]], [edited, WAYS[0]])
    assert not watch.rounds
    assert all(output.stats.drafted for output in outputs)
