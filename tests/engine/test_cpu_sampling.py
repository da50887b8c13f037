"""The kernels that truncate, draw and judge: torch's cuts, and the distributions asked for."""

from unittest.mock import patch

import pytest
import torch
from scipy.stats import chisquare

from tandem.cpu import sampling
from tandem.request import SamplingParams
from tandem.verification.judging import GREEDY, KEYED, RANDOM, RowPlan
from tandem.verification.noise import coupled_gumbel, row_key
from tandem.verification.scores import scores
from tests.engine.kernels import OLDER, compiled_for

SAMPLES = 20_000
LIMITS = (
    {"temperature": 0.3},
    {"top_k": 1},
    {"top_k": 40},
    {"top_p": 0.05},
    {"top_p": 0.9},
    {"min_p": 0.1},
    {"temperature": 1.7, "top_k": 30, "top_p": 0.8, "min_p": 0.01},
    {"temperature": 0},
)
INFINITY = float("inf")


@pytest.fixture(scope="module", autouse=True, params=["native", OLDER])
def processor(request):
    with compiled_for(request.param) as kernels:
        assert kernels is not None
        yield


def random_rows(vocab, spread, count=8, seed=0):
    return spread * torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed))


def drawn(scored, plans, q=None, seed=1):
    judged = sampling.judge(scored, q, plans, seed)
    return judged.tokens.tolist(), [bool(kept) for kept in judged.kept]


def assert_follows(tokens, expected):
    counts = torch.bincount(torch.tensor(tokens), minlength=len(expected)).double()
    possible = expected > 0
    assert not counts[~possible].any()
    wanted = expected[possible].double() / expected.sum() * len(tokens)
    assert chisquare(counts[possible], wanted * len(tokens) / wanted.sum()).pvalue > 1e-4


# -- truncation --------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [1, 7, 100, 5000])
@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0, 30.0])
def test_cuts_are_torchs(vocab, spread):
    logits = random_rows(vocab, spread, len(LIMITS))
    logits[:, vocab // 2 :: 3] = -INFINITY
    params = [SamplingParams(**limits) for limits in LIMITS]
    found = sampling.limit(logits, params)
    with patch.object(sampling, "load_kernels", lambda: None):
        expected = scores(logits, [Asking(one) for one in params])
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


class Asking:
    """As much of a row as truncation looks at."""

    def __init__(self, params):
        self.request = self
        self.params = params


def test_of_equals_the_first_are_kept():
    logits = torch.tensor([[-0.0, 1.0, 0.0, 1.0, 0.0, 1.0]])
    found = sampling.limit(logits, [SamplingParams(top_k=4)])
    assert found.isfinite().tolist() == [[True, True, False, True, False, True]]
    found = sampling.limit(logits, [SamplingParams(top_p=0.4)])
    assert found.isfinite().tolist() == [[False, True, False, True, False, False]]


def test_a_row_with_nothing_to_draw():
    logits = torch.full((2, 40), -INFINITY)
    found = sampling.limit(logits, [SamplingParams(top_k=3), SamplingParams(top_p=0.3)])
    assert torch.equal(found, logits)
    q = torch.full((1, 40), 1 / 40)
    assert drawn(found, [RowPlan(RANDOM), RowPlan(RANDOM, token=5, q_row=0)], q)[1] == [False] * 2


# -- draws -------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [1, 9, 300, 2000])
def test_greedy_rows_take_the_first_of_the_best(vocab):
    scored = random_rows(vocab, 2.0).round()
    tokens, _ = drawn(scored, [RowPlan(GREEDY)] * len(scored))
    assert tokens == scored.numpy().argmax(-1).tolist()


@pytest.mark.parametrize("vocab", [1, 9, 300, 2000])
@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0, 100.0])
def test_keyed_rows_take_the_best_of_scores_and_noise(vocab, spread):
    scored = random_rows(vocab, spread, count=200)
    scored[:, vocab // 2 :: 3] = -INFINITY
    keys = [row_key(7, position) for position in range(len(scored))]
    tokens, _ = drawn(scored, [RowPlan(KEYED, key) for key in keys])
    noise = coupled_gumbel(keys, vocab, torch.device("cpu"))
    assert tokens == (scored + noise).argmax(-1).tolist()


@pytest.mark.parametrize("vocab", [3, 37, 700])
def test_others_are_drawn_from_their_distribution(vocab):
    scored = random_rows(vocab, 1.0, count=1)
    scored[:, 1::5] = -INFINITY
    tokens, kept = drawn(scored.expand(SAMPLES, -1), [RowPlan(RANDOM)] * SAMPLES)
    assert_follows(tokens, scored[0].softmax(-1))
    assert not any(kept)
    assert drawn(scored, [RowPlan(RANDOM)], seed=5) == drawn(scored, [RowPlan(RANDOM)], seed=5)
    assert len({drawn(scored, [RowPlan(RANDOM)], seed=seed)[0][0] for seed in range(40)}) > 1


@pytest.mark.parametrize("vocab", [3, 37, 700])
def test_drafts_and_what_replaces_them_are_distributed_as_the_target_says(vocab):
    scored = random_rows(vocab, 1.0, count=1)
    scored[:, 1::5] = -INFINITY
    q = random_rows(vocab, 1.0, count=2, seed=3).softmax(-1)
    drafts = torch.multinomial(q[1], SAMPLES, replacement=True).tolist()
    plans = [RowPlan(RANDOM, token=token, q_row=1) for token in drafts]
    tokens, kept = drawn(scored.expand(SAMPLES, -1), plans, q)
    p = scored[0].softmax(-1)
    assert_follows(tokens, p)
    assert all(
        token == draft for token, draft, keep in zip(tokens, drafts, kept, strict=True) if keep
    )
    assert sum(kept) / SAMPLES == pytest.approx(torch.minimum(p, q[1]).sum().item(), abs=0.02)


def test_a_draft_from_the_targets_own_distribution_is_kept():
    scored = random_rows(500, 1.0, count=1)
    p = scored.softmax(-1)
    plans = [RowPlan(RANDOM, token=token, q_row=0) for token in range(500)]
    assert sum(drawn(scored.expand(500, -1), plans, p)[1]) >= 495  # but for rounding


def test_where_a_draft_could_say_nothing_the_target_draws_alone():
    scored = random_rows(20, 1.0, count=1)
    q = torch.full((1, 20), float("nan"))
    plans = [RowPlan(RANDOM, token=0, q_row=0)] * SAMPLES
    tokens, kept = drawn(scored.expand(SAMPLES, -1), plans, q)
    assert not any(kept)
    assert_follows(tokens, scored[0].softmax(-1))


def test_kinds_beside_each_other():
    scored = random_rows(50, 1.0, count=3)
    key = row_key(3, 9)
    tokens, kept = drawn(scored, [RowPlan(GREEDY), RowPlan(KEYED, key), RowPlan(RANDOM)])
    assert tokens[0] == scored[0].argmax()
    assert drawn(scored[1:2], [RowPlan(KEYED, key)])[0] == tokens[1:2]
    assert kept == [False] * 3
