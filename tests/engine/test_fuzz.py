"""Any request and any config.pbtxt: an answer or a sentence, and nothing else happens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tandem import Engine, EngineConfig, SamplingParams
from tests.engine.conftest import ENGINE_DEFAULTS
from tests.engine.fake_pb_utils import Request, Sender, TritonError
from tests.engine.surface import (
    FLAGS,
    Served,
    StandIn,
    check_config,
    check_parse,
    check_request,
    within_the_process,
)
from tests.engine.test_extremes import PARAMS
from tests.strategies import JSON, NAMES, PROMPTS, SCALARS, STRINGS, VALUES, doubled, written

IDS = hnp.arrays(np.int32, hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=9))
BOOLS = st.booleans() | hnp.arrays(np.bool_, st.integers(0, 2))
ANY_ARRAY = hnp.arrays(
    hnp.scalar_dtypes() | hnp.byte_string_dtypes() | hnp.unicode_string_dtypes(),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
IDENTIFIERS = st.binary(max_size=80) | st.text(st.characters(exclude_categories=["Cs"]))
INPUTS = {
    "text_input": PROMPTS,
    "input_ids": IDS,
    "sampling_parameters": JSON,
    "num_draft_tokens": hnp.arrays(np.int32, st.integers(0, 2)),
    "image": st.binary(max_size=5),
    "stream": BOOLS,
    "exclude_input_in_output": BOOLS,
    **dict.fromkeys(FLAGS, BOOLS),
}


# Nearly right, so that what lies behind the first checks is reached.
LIKELY = {
    "text_input": st.sampled_from([b"t1 t2 t3", b"t9", b"\0", "\u2028caf\u00e9".encode()]),
    "sampling_parameters": st.builds(
        lambda right, wrong: written(right | wrong).encode(),
        PARAMS,
        st.just({}) | st.dictionaries(NAMES, VALUES, min_size=1, max_size=1),
    ),
    **dict.fromkeys(["stream", *FLAGS], st.booleans()),
}


def requests(
    inputs: dict[str, Any], parameters: Any, needed: tuple[str, ...] = (), ids: Any = IDENTIFIERS
) -> st.SearchStrategy[Request]:
    """Requests with some of the inputs, cancelled or not."""
    return st.builds(
        Request,
        st.fixed_dictionaries(
            {name: inputs[name] for name in needed},
            optional={name: given for name, given in inputs.items() if name not in needed},
        ),
        own_parameters=parameters,
        own_timeout=st.sampled_from([0, 0, 0, 1, (1 << 64) - 1]),
        own_id=ids,
        sender=st.builds(Sender, cancelled=st.booleans()),
    )


# Triton writes a client's own parameters as a flat object.
PARAMETERS = st.lists(st.tuples(NAMES | STRINGS, SCALARS), max_size=4).map(doubled)
LIKELY_REQUESTS = requests(LIKELY, st.just("{}"), ("text_input",), st.text("a\n", max_size=80))
REQUESTS = requests(INPUTS, PARAMETERS) | LIKELY_REQUESTS
# Triton refuses what config.pbtxt does not declare. Should it ever not, nothing may break.
ODD_REQUESTS = requests({k: v | ANY_ARRAY for k, v in INPUTS.items()}, JSON)
INVALID = {TritonError.INVALID_ARG}

CONFIG_NAMES = st.sampled_from(list(EngineConfig.model_fields))
CONFIG_VALUES = st.one_of(
    STRINGS,
    VALUES.map(written),
    st.sampled_from(["ngram,suffix", "vllm", "1MiB", "9" * 4000, "9" * 5000, "1e999", "0x10"]),
    st.sampled_from(["[" * 100_000, '{"a":' * 100_000, "[" * 960 + "]" * 960, "[[[1], 2]]"]),
    st.lists(st.lists(SCALARS, max_size=3), max_size=4).map(written),
)
LIKELY_VALUES = st.sampled_from(
    [
        *("vllm", "ngram,suffix", "none", "mtp", "eagle", "medusa", "block", "coupled", "true"),
        *("1", "2", "16", "0.5", "512MiB", "cpu", "cuda:0,cuda:1", "[[0], [0, 0]]", '{"a": 1}'),
    ]
)
CONFIGS = st.dictionaries(
    CONFIG_NAMES | STRINGS, CONFIG_VALUES | LIKELY_VALUES, max_size=4
) | st.dictionaries(CONFIG_NAMES, LIKELY_VALUES, max_size=8)

large = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=300, suppress_health_check=large)
@given(REQUESTS)
@example(Request({"text_input": b"a", "sampling_parameters": b"[" * 30_000}))
def test_any_request_ends_once_and_the_next_is_served(request_):
    check_request(StandIn(), request_, INVALID)


@settings(max_examples=200, suppress_health_check=large)
@given(ODD_REQUESTS)
def test_what_triton_should_have_stopped_does_no_harm_either(request_):
    check_request(StandIn(), request_, INVALID | {TritonError.INTERNAL})


@settings(max_examples=1000, suppress_health_check=large)
@given(REQUESTS)
def test_any_request_is_read_or_refused_in_a_sentence(request_):
    check_parse(request_)


@pytest.fixture(scope="module")
def served(target, good_draft):
    config = ENGINE_DEFAULTS | {"draft_model": good_draft, "max_model_len": 40}
    with Engine(EngineConfig(model=target, **config)) as engine:
        engine.generate(["t1"], SamplingParams(max_tokens=8))  # what is loaded late is loaded
        yield engine


@settings(max_examples=200, suppress_health_check=large)
@given(LIKELY_REQUESTS)
@example(Request({"input_ids": np.array([1, 96], np.int32)}))
@example(Request({"text_input": b"t1", "sampling_parameters": b'{"logit_bias": {"96": 1}}'}))
def test_an_engine_outlives_any_request(served, request_):
    check_request(Served(served), request_, INVALID)


@settings(max_examples=500, suppress_health_check=large)
@given(CONFIGS, st.booleans())
@example({"model": "a\0b"}, True)
@example({"speculative_tree": "[" * 100_000}, True)
@example({"speculative_tree": "[[[1], 2]]"}, True)
@example({"vllm_engine_args": "[" * 100_000}, True)
def test_any_config_is_taken_or_refused_in_a_sentence(parameters, complete):
    check_config({"model": "target", **parameters} if complete else parameters)


def test_a_file_that_is_opened_is_noticed(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(AssertionError, match="open"), within_the_process():
        (tmp_path / "file").read_text()
