"""What each sampling parameter does to a distribution, against plain Python and transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
import transformers
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tandem.request import Request
from tandem.verification.scores import MOST_SORTED, Row, scores
from tests.engine.builders import make_request
from tests.engine.conftest import without_kernels

VOCAB = 6
FLAT = [0.0] * VOCAB
CLOSE = 1e-4  # nearer than this to a cut, rounding decides


@pytest.fixture(scope="module", autouse=True, params=["kernels", "torch"])
def way(request):
    """Both ways in which a row is penalized and truncated on a CPU."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            without_kernels(patch)
        yield


def distribution(logits: Sequence[float], request: Request, prefix: Sequence[int] = ()):
    """[V] probabilities that the engine draws from."""
    return scores(torch.tensor([logits]), [Row(request, tuple(prefix))]).softmax(-1)[0].tolist()


@pytest.mark.parametrize("top_k", [VOCAB, 1 << 40, 10**400])
def test_more_than_all_tokens_are_all(top_k):
    request = make_request([0], top_k=top_k)
    assert allowed([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], request) == set(range(VOCAB))


def allowed(logits: Sequence[float], request: Request, prefix: Sequence[int] = ()) -> set[int]:
    return {t for t, p in enumerate(distribution(logits, request, prefix)) if p > 0}


def shifts(prompt, output=(), prefix=(), logits=FLAT, **params) -> list[float]:
    """By how much each token's score moves."""
    request = make_request(prompt, output, **params)
    found = scores(torch.tensor([list(logits)]), [Row(request, tuple(prefix))])[0]
    return [round(after - before, 4) for before, after in zip(logits, found.tolist(), strict=True)]


# -- one parameter at a time -------------------------------------------------------------------


def test_presence_counts_each_written_token_once_drafted_ones_too():
    moved = shifts([0], [1, 1], [2], presence_penalty=0.5)
    assert moved == [0, -0.5, -0.5, 0, 0, 0]


def test_frequency_counts_every_time_a_token_was_written():
    moved = shifts([0, 0], [1, 1, 2], [1, 3], frequency_penalty=0.5)
    assert moved == [0, -1.5, -0.5, -0.5, 0, 0]


def test_repetition_counts_prompt_output_and_draft():
    logits = [2.0, -2.0, 2.0, -2.0, 2.0, 0.0]
    moved = shifts([0], [1], [2, 5], logits, repetition_penalty=2.0)
    assert moved == [-1, -2, -1, 0, 0, 0]


def test_repetition_counts_a_token_once():
    assert shifts([0, 0], [0], [0], [2.0, *FLAT[1:]], repetition_penalty=2.0)[0] == -1


def test_bias_is_added():
    assert shifts([0], logit_bias={1: 1.5, 4: -100}) == [0, 1.5, 0, 0, -100, 0]


def test_bias_comes_before_the_repetition_penalty():
    assert shifts([1], logit_bias={1: 3}, repetition_penalty=2.0)[1] == 1.5


@pytest.mark.parametrize(("written", "banned"), [(0, True), (1, True), (2, False), (3, False)])
@pytest.mark.parametrize("drafted", [False, True])
def test_stop_tokens_are_banned_until_min_tokens(written, banned, drafted):
    request = make_request([0], [] if drafted else [0] * written, stop_ids=[3, 5], min_tokens=2)
    found = allowed(FLAT, request, [0] * written if drafted else [])
    assert found == set(range(VOCAB)) - ({3, 5} if banned else set())


def test_a_banned_token_is_never_allowed():
    assert allowed(FLAT, make_request([0], banned=[[2]])) == {0, 1, 3, 4, 5}


@pytest.mark.parametrize(
    ("output", "prefix", "banned"),
    [
        ([1, 2], [], True),
        ([1], [2], True),
        ([], [1, 2], True),
        ([4, 1, 2], [], True),
        ([2, 1], [], False),
        ([2], [], False),
        ([], [], False),
        ([1, 2], [4], False),
    ],
)
def test_a_banned_sequence_is_not_completed(output, prefix, banned):
    request = make_request([1, 2], output, banned=[[1, 2, 3]])
    assert (3 not in allowed(FLAT, request, prefix)) is banned


def test_temperature_divides():
    found = distribution([1.0, 2.0, *FLAT[2:]], make_request([0], temperature=0.5))
    assert math.log(found[1] / found[0]) == pytest.approx(2.0, rel=1e-5)


LADDER = [math.log(p) for p in (0.4, 0.3, 0.15, 0.1, 0.04, 0.01)]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"top_k": 1}, 1),
        ({"top_k": 4}, 4),
        ({"top_k": 0}, 6),
        ({"top_k": -1}, 6),
        ({"top_k": 99}, 6),
        ({"top_p": 1e-9}, 1),
        ({"top_p": 0.39}, 1),
        ({"top_p": 0.41}, 2),
        ({"top_p": 0.84}, 3),
        ({"top_p": 0.999}, 6),
        ({"min_p": 1.0}, 1),
        ({"min_p": 0.74}, 2),
        ({"min_p": 0.2}, 4),
        ({"top_k": 3, "top_p": 0.8}, 2),
        ({"top_k": 2, "top_p": 0.99}, 2),
        ({"min_p": 0.3, "top_p": 0.99}, 3),
        ({"min_p": 0.5, "temperature": 3.0}, 4),
    ],
)
def test_truncation_keeps_the_best(params, expected):
    found = distribution(LADDER, make_request([0], **params))
    assert [p > 0 for p in found] == [True] * expected + [False] * (VOCAB - expected)
    assert sum(found) == pytest.approx(1)


def test_top_k_breaks_ties_by_token_id():
    assert allowed(FLAT, make_request([0], top_k=2)) == {0, 1}


@pytest.mark.parametrize("neighbours", [0, 1])
def test_greedy_rows_keep_all_but_edits(neighbours):
    request = make_request([0], temperature=0, top_k=1, top_p=0.1, min_p=0.9, logit_bias={1: 9})
    rows = [Row(request), Row(make_request([0], temperature=3, top_k=1))][: 1 + neighbours]
    found = scores(torch.tensor([LADDER] * len(rows)), rows)[0]
    expected = [value + 9 * (token == 1) for token, value in enumerate(LADDER)]
    assert found.tolist() == pytest.approx(expected)


def test_many_rows_are_cut_as_one_is():
    """They are sorted in parts."""
    draws = torch.Generator().manual_seed(4)
    count = 2 * MOST_SORTED + 3
    logits = torch.randn(count, VOCAB, generator=draws)
    limits = [{"top_k": 1 + row % VOCAB, "top_p": 0.3 + 0.1 * (row % 7)} for row in range(count)]
    rows = [
        Row(make_request([0], temperature=0.5 + row % 3, **one)) for row, one in enumerate(limits)
    ]
    alone = [scores(logits[row : row + 1], rows[row : row + 1])[0] for row in range(count)]
    assert torch.equal(scores(logits, rows), torch.stack(alone))
    assert len({tuple(one.isfinite().tolist()) for one in alone}) > 20


def test_the_given_logits_stay_as_they_are():
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    edits = {"logit_bias": {1: 2}, "presence_penalty": 1, "top_k": 2, "min_p": 0.1}
    scores(logits, [Row(make_request([0], [1], **edits)), Row(make_request([0], temperature=0))])
    assert torch.equal(logits, before)


# -- all together ------------------------------------------------------------------------------

SMALL = st.lists(st.integers(0, VOCAB - 1), max_size=5)
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.3, 0.7, 1.0, 2.5]),
        "top_k": st.integers(-1, VOCAB + 1),
        "top_p": st.sampled_from([0.05, 0.3, 0.5, 0.77, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 0.03, 0.2, 0.6, 1.0]),
        "presence_penalty": st.sampled_from([-1.0, 0.0, 0.5, 2.0]),
        "frequency_penalty": st.sampled_from([-0.5, 0.0, 0.3, 2.0]),
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.2, 3.0]),
        "logit_bias": st.dictionaries(
            st.integers(0, VOCAB - 1), st.sampled_from([-3, 0.5, 4]), max_size=2
        ),
        "min_tokens": st.integers(0, 4),
        "stop_ids": st.lists(st.integers(0, 2), max_size=2),
        "banned": st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), max_size=2),
    },
)
CASES = st.tuples(
    st.lists(st.integers(-12, 12).map(lambda n: n / 4), min_size=VOCAB, max_size=VOCAB),
    SMALL.filter(bool),
    SMALL,
    SMALL,
    PARAMS,
)


def plain(
    logits: Sequence[float],
    request: Request,
    prefix: Sequence[int],
    banned: Sequence[Sequence[int]],
) -> list[float]:
    """The definition, in plain Python. Gives up where a cut is too close to call."""
    params, written = request.params, [*request.output, *prefix]
    line = [value + params.logit_bias.get(token, 0) for token, value in enumerate(logits)]
    if len(written) < params.min_tokens:
        for token in request.stop_ids:
            line[token] = -math.inf
    for *begin, last in banned:
        if begin == (written[-len(begin) :] if begin else []):
            line[last] = -math.inf
    for token in {*request.tokens, *prefix}:
        rate = params.repetition_penalty
        line[token] = line[token] / rate if line[token] > 0 else line[token] * rate
    for token in set(written):
        line[token] -= params.frequency_penalty * written.count(token) + params.presence_penalty
    best = max(line)
    weights = [math.exp((value - best) / params.temperature) for value in line]
    assume(all(abs(weight - params.min_p) > CLOSE or weight == 1 for weight in weights))
    ranked = sorted(range(VOCAB), key=lambda token: (-weights[token], token))
    ranked = [token for token in ranked if weights[token] >= params.min_p and weights[token] > 0]
    ranked = ranked[: params.top_k] if params.top_k > 0 else ranked
    total = sum(weights[token] for token in ranked)
    kept: list[int] = []
    for token in ranked:
        before = sum(weights[other] for other in kept) / total
        assume(abs(before - params.top_p) > CLOSE or params.top_p == 1)
        if before >= params.top_p and params.top_p < 1:
            break
        kept.append(token)
    mass = sum(weights[token] for token in kept)
    return [weights[token] / mass if token in kept else 0.0 for token in range(VOCAB)]


@settings(max_examples=300)
@given(CASES)
def test_all_parameters_together_are_as_defined(case):
    logits, prompt, output, prefix, params = case
    request = make_request(prompt, output, **params)
    expected = plain(logits, request, prefix, params.get("banned", ()))
    assert distribution(logits, request, prefix) == pytest.approx(expected, abs=2e-6)


@settings(max_examples=60)
@given(st.lists(CASES, min_size=2, max_size=4), st.booleans())
def test_rows_do_not_see_each_other(cases, with_greedy):
    logits = torch.tensor([case[0] for case in cases])
    rows = [Row(make_request(p, o, **params), tuple(prefix)) for _, p, o, prefix, params in cases]
    if with_greedy:
        rows[0] = Row(make_request([1], [2], temperature=0, presence_penalty=1))
    together = scores(logits, rows).softmax(-1)
    for index, row in enumerate(rows):
        alone = scores(logits[index : index + 1], [row]).softmax(-1)[0]
        torch.testing.assert_close(together[index], alone)


# -- transformers ------------------------------------------------------------------------------

HF = {
    "repetition_penalty": (transformers.RepetitionPenaltyLogitsProcessor, [0.7, 1.3, 2.0]),
    "temperature": (transformers.TemperatureLogitsWarper, [0.3, 0.9, 1.7]),
    "top_k": (transformers.TopKLogitsWarper, [1, 7, 50]),
    "top_p": (transformers.TopPLogitsWarper, [0.1, 0.5, 0.95]),
    "min_p": (transformers.MinPLogitsWarper, [0.01, 0.1, 0.5]),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, (_, values) in HF.items() for value in values]
)
@pytest.mark.parametrize("vocab", [96, 5000])
def test_as_in_transformers(name, value, vocab):
    generator = torch.Generator().manual_seed(7)
    logits = 3 * torch.randn(16, vocab, generator=generator)
    texts = torch.randint(vocab, (16, 20), generator=generator)
    expected = HF[name][0](value)(texts, logits.clone())
    rows = [Row(make_request(text[:9], text[9:], **{name: value})) for text in texts.tolist()]
    torch.testing.assert_close(scores(logits, rows).softmax(-1), expected.softmax(-1))
