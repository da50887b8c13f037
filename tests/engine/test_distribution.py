"""At temperature > 0, sequences follow the exact distribution that enumeration gives."""

import pytest
import torch

from tandem import Engine, EngineConfig, SamplingParams
from tandem.verification.sampler import Sampler
from tandem.verification.verify import _block_weights as fair_weights
from tests.engine.checkpoints import (
    cut_vocabulary,
    make_checkpoint,
    perturb_checkpoint,
    write_words,
)
from tests.engine.conftest import without_kernels
from tests.engine.heads import METHODS as HEADS
from tests.engine.heads import Shape, make_head
from tests.engine.kernels import bent
from tests.engine.policy_world import always_pays
from tests.engine.references import chi_square_p, enumerate_sequences

VOCAB = 6
SAMPLES = 3000
LENGTH = 3
PROMPT = [1, 2, 1, 2, 3, 1, 2]  # repeats itself, so that n-gram has something to propose
REFUSE_BELOW = 1e-4

CASES = {
    "temperature 1": {},
    "temperature 0.6": {"temperature": 0.6},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.3},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "presence_penalty": {"presence_penalty": 1.2},
    "frequency_penalty": {"frequency_penalty": 1.2},
    "logit_bias": {"logit_bias": {2: 1.5, 4: -3.0}},
    "all": {
        "temperature": 0.8,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.05,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.2,
        "logit_bias": {3: 0.7},
    },
}
METHODS = ["good draft", "bad draft", "ngram"]
OTHERS = [
    "good draft tree",
    "other tokens",
    "other tokens tree",
    "fewer tokens",
    "suffix",
    "suffix tree",
    "ngram,suffix,good draft",
]
OTHERS += [f"{head}{tree}" for head in HEADS for tree in ("", " tree")]
TREE = {"speculative_tree": 2}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("six")
    target = make_checkpoint(folder / "target", seed=11, vocab_size=VOCAB, scale=0.6)
    good = perturb_checkpoint(target, folder / "good", noise=0.1)
    other = perturb_checkpoint(target, folder / "other", noise=0.1)
    write_words(other, ["x", "t1", "t2", "t3", "y", "t5"])
    return {
        "target": target,
        "other tokens": other,
        "fewer tokens": cut_vocabulary(good, folder / "fewer", VOCAB - 1),
        "good draft": good,
        "bad draft": make_checkpoint(folder / "bad", seed=12, vocab_size=VOCAB, scale=0.6),
        **{head: make_head(folder / head, head, shape=Shape(vocab=VOCAB)) for head in HEADS},
    }


def sample(models, method, params, policy=None, least=0.0, **parameters):
    """SAMPLES completions; six tokens each, so that whole drafts lie within the first three.

    policy: cuts drafts; least: chance of being kept, below which chains end by themselves.
    """
    mixed = "," in method
    if mixed:
        parameters |= {"speculative_method": "ngram,suffix,draft_model", "prompt_lookup_min": 1}
        parameters |= {"draft_model": models["good draft"]}
    elif method == "ngram":
        parameters |= {"speculative_method": "ngram", "prompt_lookup_min": 1}
    else:
        name = method.removesuffix(" tree")
        parameters |= TREE if method != name else {}
        parameters |= {"draft_model": models.get(name)}
        method = HEADS.get(name, "suffix" if name == "suffix" else None)
        parameters |= {"speculative_method": method}
    config = EngineConfig(
        model=models["target"],
        num_speculative_tokens=3,
        kv_cache_memory="4MiB",
        seed=5,
        max_num_seqs=128,
        adaptive_speculation=mixed,
        **parameters,
    )
    with Engine(config) as engine:
        if mixed:
            always_pays(engine)
        if policy is not None:
            engine.proposer.propose = policy(engine.proposer.propose)
        if least:
            engine.proposer.confidence.open_from(least)
        return engine.generate([PROMPT] * SAMPLES, params)


def p_value(models, method, case, policy=None, least=0.0, **parameters):
    """Of SAMPLES completions, if they follow the enumerated distribution."""
    params = SamplingParams(max_tokens=2 * LENGTH, **case)
    outputs = sample(models, method, params, policy, least, **parameters)
    return chi_square_p(
        outputs, enumerate_sequences(models["target"], PROMPT, params, LENGTH), LENGTH
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_follows_the_enumerated_distribution(case, method, models):
    params = SamplingParams(max_tokens=2 * LENGTH, **CASES[case])
    expected = enumerate_sequences(models["target"], PROMPT, params, LENGTH)
    outputs = sample(models, method, params)
    assert sum(output.stats.drafted for output in outputs) > SAMPLES
    assert chi_square_p(outputs, expected, LENGTH) > REFUSE_BELOW


@pytest.mark.parametrize("method", OTHERS)
def test_every_other_way_follows_it(method, models):
    """With all sampling parameters at once."""
    test_follows_the_enumerated_distribution("all", method, models)


@pytest.mark.parametrize("method", METHODS)
def test_coupled_draws_follow_it_too(method, models):
    assert p_value(models, method, {}, acceptance_method="coupled") > REFUSE_BELOW


@pytest.mark.parametrize(
    ("case", "method"),
    [
        ("temperature 1", "bad draft"),
        *(("all", method) for method in ("bad draft", "good draft", "eagle", "eagle3")),
        ("all", "other tokens"),
    ],
)
def test_judging_blocks_follows_it_too(case, method, models):
    assert p_value(models, method, CASES[case], acceptance_method="block") > REFUSE_BELOW


@pytest.mark.parametrize("rule", ["rejection", "block", "coupled"])
@pytest.mark.parametrize("method", ["good draft", "bad draft", "good draft tree", *HEADS])
def test_drafts_with_weights_of_8_bits_follow_it_too(method, rule, models):
    """The target's are bfloat16 then, which is as near to what is enumerated as can be told."""
    given = {"dtype": "bfloat16", "acceptance_method": rule}
    assert p_value(models, method, CASES["all"], **given) > REFUSE_BELOW


def test_judging_blocks_keeps_more(models):
    params = SamplingParams(max_tokens=32)
    kept = {}
    for rule in ("rejection", "block"):
        outputs = sample(models, "bad draft", params, acceptance_method=rule)
        stats = [output.stats for output in outputs]
        kept[rule] = sum(s.accepted for s in stats) / sum(s.rounds for s in stats)
    assert kept["block"] > 1.01 * kept["rejection"]


def test_a_bent_block_rule_is_found_out(models, monkeypatch):
    monkeypatch.setattr("tandem.verification.verify._block_weights", generous_weights)
    assert p_value(models, "bad draft", {}, acceptance_method="block") < REFUSE_BELOW


def generous_weights(ratios, lengths):
    """As if the target liked every drafted token half as much again."""
    return fair_weights([1.5 * ratio for ratio in ratios], lengths)


@pytest.mark.parametrize("method", ["good draft", "bad draft", "ngram"])
def test_so_do_torchs_draws(method, models, monkeypatch):
    """Where there is no compiler."""
    without_kernels(monkeypatch)
    assert p_value(models, method, CASES["all"]) > REFUSE_BELOW


# The very same check must fail where...
GENEROUS = ("uniform(key, 0) * own", "0.6 * uniform(key, 0) * own")  # ... too much is accepted,
FORGETFUL = ("(own[i] > 0 ? own[i] : 0.0f)", "0.0f")  # a redraw is from p, not max(0, p - q),
WRONG_CUT = (
    "kNever) * limits.top_p",
    "kNever) * limits.top_p * 0.8",
)  # or too little may be drawn.


@pytest.mark.parametrize(
    ("change", "case"),
    [
        (GENEROUS, "temperature 1"),
        (GENEROUS, "top_k"),
        (GENEROUS, "repetition_penalty"),
        (FORGETFUL, "temperature 1"),
        (WRONG_CUT, "top_p"),
    ],
    ids=str,
)
def test_a_bent_kernel_is_found_out(change, case, models, tmp_path):
    with bent(tmp_path / "cpu", "sampling.h", *change):
        assert p_value(models, "bad draft", CASES[case]) < REFUSE_BELOW


@pytest.mark.parametrize("case", ["temperature 1", "top_k", "repetition_penalty"])
def test_torchs_acceptance_bent_is_found_out(case, models, monkeypatch):
    without_kernels(monkeypatch)
    fair = Sampler.uniform
    monkeypatch.setattr(Sampler, "uniform", lambda self, count: fair(self, count) * 0.6)
    assert p_value(models, "bad draft", CASES[case]) < REFUSE_BELOW


def test_a_residual_of_torchs_that_forgets_q_is_found_out(models, monkeypatch):
    without_kernels(monkeypatch)
    monkeypatch.setattr("tandem.verification.verify.residual", lambda p, q: p)
    assert p_value(models, "bad draft", {}) < REFUSE_BELOW


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_place_that_nothing_could_be_drawn_for_is_no_draft(rule, models):
    """Where a draft may say nothing of what it knows, its q is no distribution."""

    def policy(propose):
        def without(decodes, alone):
            draft = propose(decodes)
            if draft.q is not None:
                draft.q[:, 1:2] = torch.nan
                for tokens in draft.tokens:
                    tokens[1:2] = [0] * len(tokens[1:2])
            return draft

        return without

    assert p_value(models, "good draft", {}, policy, acceptance_method=rule) > REFUSE_BELOW


def cut_where(unlikely):
    """A policy that drafts up to the first place which is found unlikely."""

    def policy(propose):
        def cutting(decodes, alone):
            draft = propose(decodes)
            for tokens, q in zip(draft.tokens, [] if draft.q is None else draft.q, strict=False):
                places = [i for i, token in enumerate(tokens) if unlikely(q[i], token)]
                del tokens[min(places, default=len(tokens)) :]
            return draft

        return cutting

    return policy


@pytest.mark.parametrize("method", ["bad draft", "good draft"])
def test_a_policy_may_cut_by_what_could_be_drawn(method, models):
    params = SamplingParams(max_tokens=2 * LENGTH)
    expected = enumerate_sequences(models["target"], PROMPT, params, LENGTH)
    policy = cut_where(lambda q, token: q.max() < 0.4)
    outputs = sample(models, method, params, policy)
    drafted = sum(output.stats.drafted for output in outputs)
    assert 0 < drafted < 0.9 * sum(o.stats.drafted for o in sample(models, method, params))
    assert chi_square_p(outputs, expected, LENGTH) > REFUSE_BELOW


@pytest.mark.parametrize("method", ["bad draft", "good draft"])
def test_a_policy_that_cuts_by_what_was_drawn_is_found_out(method, models):
    """Non-anticipation: whether a place is drafted may not depend on the token drawn there."""
    assert p_value(models, method, {}, cut_where(lambda q, token: q[token] < 0.4)) < REFUSE_BELOW


@pytest.mark.parametrize(
    ("case", "rule"),
    [("temperature 1", "rejection"), *(("all", one) for one in ("rejection", "block", "coupled"))],
)
@pytest.mark.parametrize(
    ("method", "least"),
    [("bad draft", 0.6), ("good draft", 0.6), ("fewer tokens", 0.6), ("eagle3", 0.95)],
)
def test_chains_that_end_where_the_draft_is_unsure_follow_it(method, least, case, rule, models):
    """(The head is sure of next to everything.)"""
    params = SamplingParams(max_tokens=2 * LENGTH, **CASES[case])
    expected = enumerate_sequences(models["target"], PROMPT, params, LENGTH)
    outputs = sample(models, method, params, least=least, acceptance_method=rule)
    lengths = [output.stats.drafted / max(1, output.stats.rounds) for output in outputs]
    assert 0 < sum(lengths) / SAMPLES < 0.8 * 3
    assert chi_square_p(outputs, expected, LENGTH) > REFUSE_BELOW


def test_a_kernel_that_ends_chains_by_what_was_drawn_is_found_out(models, tmp_path):
    fair = "gate.opens(whole)) return kNoToken;"
    drawn = "whole / draws.weights[find_by_sum(draws, uniform(key, 1) * whole)]"
    with bent(tmp_path / "cpu", "chains.h", fair, fair.replace("whole", drawn, 1)):
        assert p_value(models, "good draft", {}, least=0.6) < REFUSE_BELOW
