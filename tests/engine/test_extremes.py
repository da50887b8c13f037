"""Values that are allowed but extreme: they may give odd text, never a broken engine."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem import Engine, EngineConfig, SamplingParams
from tandem.errors import InvalidRequestError
from tests.engine.conftest import ENGINE_DEFAULTS

HUGE = 10**30
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.sampled_from([3, 5, HUGE]),
        "min_tokens": st.sampled_from([0, 3]),
        "temperature": st.sampled_from([0.0, 1e-5, 1e-300, 100.0]),
        "top_p": st.sampled_from([1e-300, 1e-8, 1 - 1e-12, 1.0]),
        "top_k": st.sampled_from([-1, 0, 1, 95, 96, 97, 1 << 40, HUGE]),
        "min_p": st.sampled_from([0.0, 1e-300, 1.0]),
        "seed": st.sampled_from([-(1 << 63), -1, 0, (1 << 63) - 1]),
        "presence_penalty": st.sampled_from([-2.0, 2.0]),
        "frequency_penalty": st.sampled_from([-2.0, 2.0]),
        "repetition_penalty": st.sampled_from([1e-300, 1e-3, 100.0]),
        "logit_bias": st.sampled_from([{0: 100}, dict.fromkeys(range(96), -100), {95: -100}]),
        "logprobs": st.sampled_from([0, 20]),
        "stop": st.sampled_from([" ", "t", [" t1"] * 32]),
        "stop_token_ids": st.sampled_from([[0], list(range(96))]),
        "bad_words": st.sampled_from([["t1"], [" "], ["t1 t2 t3"], ["no such word"]]),
        "num_draft_tokens": st.sampled_from([0, 1, HUGE]),
    },
)


@pytest.fixture(scope="module", params=[0.0, 0.5], ids="least={}".format)
def small(request, target, good_draft) -> Engine:
    """Whose drafts end, or not, where they are not sure."""
    config = ENGINE_DEFAULTS | {"draft_model": good_draft, "max_model_len": 40}
    one = Engine(EngineConfig(model=target, **config))
    one.proposer.confidence.open_from(request.param)
    return one


def ends(one: Engine, params: list[SamplingParams]) -> None:
    for output in one.generate([[1, 2, 3]] * len(params), params):
        assert output.finish_reason in ("stop", "length")
        assert 1 <= len(output.token_ids) <= 37
        assert all(0 <= token < 96 for token in output.token_ids)
        assert math.isfinite(output.cumulative_logprob)
    one.check_integrity()


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PARAMS, min_size=1, max_size=3))
def test_every_request_ends(small, batch):
    ends(small, [SamplingParams(**params) for params in batch])


@pytest.mark.parametrize("token", [HUGE, 10**4000])
def test_huge_token_ids_are_refused(small, token):
    with pytest.raises(InvalidRequestError, match="outside the vocabulary"):
        small.generate([token])
