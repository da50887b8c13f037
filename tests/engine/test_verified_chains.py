"""Chains verified by the CPU kernels in one call: what rows of scores give, up to a chain's end."""

import random

import pytest
import torch

from tandem.cpu import sampling
from tandem.request import SamplingParams
from tandem.verification.judging import GREEDY, KEYED, RANDOM, RowPlan, VerifiedChain
from tandem.verification.scores import limits_of

LIMITS = ({}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.1, "temperature": 0.5}, {"top_k": 10**6})
SEED = 5


class Case:
    """Some chains, as both ways take them."""

    def __init__(self, seed, most_tokens=7):
        self.chance = random.Random(seed)
        self.vocab = self.chance.choice([7, 100, 5000])
        noise = torch.Generator().manual_seed(seed)
        counts = [self.chance.randrange(most_tokens) for _ in range(self.chance.randrange(1, 7))]
        self.steps = max(1, *counts)
        self.logits = 3 * torch.randn(sum(counts) + len(counts), self.vocab, generator=noise)
        self.q = torch.randn(len(counts), self.steps, self.vocab, generator=noise).softmax(-1)
        self.chains, self.params, self.plans = [], [], []
        for place, count in enumerate(counts):
            self._add(place, count)

    def _add(self, place, count):
        noise = self.chance.choice([GREEDY, KEYED, RANDOM])
        judged = noise == RANDOM and self.chance.random() < 0.6
        params = SamplingParams(**self.chance.choice(LIMITS))
        first = len(self.plans)
        likely = self.logits[first : first + count].argmax(-1).tolist()
        tokens = [
            one if self.chance.random() < 0.7 else self.chance.randrange(self.vocab)
            for one in likely
        ]
        keys = [self.chance.getrandbits(64) for _ in range(count + 1)] if noise == KEYED else []
        q_row = place * self.steps if judged else -1
        limits = () if noise == GREEDY else limits_of(params)
        self.chains.append(VerifiedChain(noise, limits, keys, tokens, q_row))
        for row in range(count + 1):
            drafted = (tokens[row], q_row + row) if judged and row < count else (0, -1)
            self.plans.append(RowPlan(noise, keys[row] if keys else 0, *drafted))
            self.params.append(SamplingParams(temperature=0) if noise == GREEDY else params)

    def verified(self):
        return sampling.verify(self.logits, self.chains, self.q, SEED)

    def judged(self):
        """Row by row."""
        scored = sampling.limit(self.logits, self.params)
        found = sampling.judge(scored, self.q.view(-1, self.vocab), self.plans, SEED)
        return found.tokens.tolist(), found.kept.tolist()


def ends(chain, tokens, kept):
    """The row that a chain does not go on from."""
    for row, drafted in enumerate(chain.tokens):
        if not (kept[row] if chain.q_row >= 0 else tokens[row] == drafted):
            return row
    return len(chain.tokens)


@pytest.mark.parametrize("seed", range(60))
def test_chains_are_verified_as_their_rows_are(seed):
    case = Case(seed)
    (tokens, kept), expected = case.verified(), case.judged()
    first = 0
    for chain in case.chains:
        count = len(chain.tokens)
        rows = slice(first, first + count + 1)
        end = ends(chain, expected[0][rows], expected[1][rows])
        assert tokens[rows][: end + 1] == expected[0][rows][: end + 1]
        assert kept[rows][: end + 1] == expected[1][rows][: end + 1]
        assert ends(chain, tokens[rows], kept[rows]) == end
        first = rows.stop
    assert first == len(tokens) == len(kept)


def test_behind_an_end_nothing_is_drawn():
    logits = torch.zeros(4, 50)
    logits[:, 49] = 1
    chain = VerifiedChain(GREEDY, (), [], [49, 3, 49], -1)
    assert sampling.verify(logits, [chain], None, SEED) == ([49, 49, 0, 0], [0] * 4)


def test_behind_a_rejected_token_nothing_is_drawn():
    logits, q = torch.zeros(4, 50), torch.full((1, 3, 50), 1 / 50)
    logits[1, 7] = -torch.inf
    chain = VerifiedChain(RANDOM, (), [], [3, 7, 3], 0)
    tokens, kept = sampling.verify(logits, [chain], q, SEED)
    assert kept == [1, 0, 0, 0] and tokens[0] == 3
    assert tokens[1] != 7 and tokens[2:] == [0, 0]


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("vocab", [50, 50_000])
def test_a_chain_ends_where_its_first_token_is_left_whichever_row_is_through_first(place, vocab):
    logits = torch.zeros(8, vocab)
    logits[:, vocab - 1] = 1
    tokens = [vocab - 1] * 7
    tokens[place] = tokens[6] = 0
    chain = VerifiedChain(RANDOM, limits_of(SamplingParams(top_k=1)), [], tokens, -1)
    drawn, _ = sampling.verify(logits, [chain], None, SEED)
    assert drawn[: place + 1] == [vocab - 1] * (place + 1)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_each_token_has_a_row_and_so_has_what_follows(rows):
    chain = VerifiedChain(GREEDY, (), [], [1], -1)
    with pytest.raises(ValueError, match="a row for each token"):
        sampling.verify(torch.zeros(rows, 8), [chain], None, SEED)


def test_what_is_no_number_is_an_error():
    for wrong in ({"tokens": ["x"]}, {"keys": [None]}, {"noise": "x"}, {"limits": ("x", 0, 0, 1)}):
        chain = VerifiedChain(KEYED, (), [1], [], -1)._replace(**wrong)
        with pytest.raises((TypeError, SystemError)):
            sampling.verify(torch.zeros(3, 8), [chain], None, SEED)
