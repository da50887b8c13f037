"""Random requests to a real server and its front: each ends, and who asks beside them notices
nothing.

What they hold is what `tests/engine/test_fuzz.py` has the model read without a server; here it goes
through Triton's own reading too, as bytes that no client library would write.
"""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import httpx2
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tandem.metrics import RESTARTS
from tandem.serving.front_process import front_before
from tandem.serving.processes import members
from tests.engine.test_extremes import PARAMS
from tests.strategies import (
    HUGE,
    JSON,
    NAMES,
    PATHS,
    PROMPTS,
    SCALARS,
    STRINGS,
    VALUES,
    doubled,
    nested,
    written,
)
from tests.triton import scrape
from tests.triton.conftest import PROMPT
from tests.triton.protocol import stream, text_of
from tests.triton.raw import RawTensor, is_request, message, over_grpc, over_http, strings

STALLED_S = 10.0  # far beyond what a neighbour's 16 tokens take
LONGEST_SENTENCE = 2000  # Triton quotes names whole
ACCIDENTS = ("Traceback", "object at 0x", "NoneType", "Stub process", "StatusCode")


def some(examples):
    """What breaks a server is seen, not made smaller: a broken one says nothing about the next."""
    return settings(
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        phases=[Phase.explicit, Phase.generate],
    )


ENCODABLE = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(PATHS)
# Valid if extreme, and short enough for a test. What is wrong may allow more tokens, not more time.
VALID = PARAMS.map(lambda given: given | {"max_tokens": min(given.get("max_tokens", 8), 32)})
TIMEOUT_S = 1
LIKELY = st.builds(
    lambda right, wrong: {"timeout": TIMEOUT_S} | right | wrong,
    VALID,
    st.dictionaries(NAMES, VALUES, min_size=1, max_size=1),
)


def text(name, texts):
    return st.builds(lambda given: RawTensor(name, "BYTES", [1], strings(given)), texts)


def numbers(name, counts):
    each = st.integers(-1, 100) | st.integers(-(1 << 31), (1 << 31) - 1)
    lists = counts.flatmap(lambda count: st.lists(each, min_size=count, max_size=count))
    return lists.map(
        lambda given: RawTensor(name, "INT32", [len(given)], np.array(given, "<i4").tobytes())
    )


def flag(name):
    return st.sampled_from([b"\0", b"\1", b"\7"]).map(lambda one: RawTensor(name, "BOOL", [1], one))


RIGHT = {
    "sampling_parameters": text("sampling_parameters", VALID.map(written).map(str.encode)),
    "num_draft_tokens": numbers("num_draft_tokens", st.just(1)),
    **{name: flag(name) for name in ("stream", "return_logprobs", "return_speculation_stats")},
}
ODD = RIGHT | {
    "text_input": text("text_input", PROMPTS),
    "sampling_parameters": text("sampling_parameters", LIKELY.map(written).map(str.encode) | JSON),
    "input_ids": numbers("input_ids", st.integers(0, 9)),
    "image": text("image", st.binary(max_size=5)),
    "exclude_input_in_output": flag("exclude_input_in_output"),
}
PROMPTED = {"text_input": text("text_input", st.just(b"def f("))}
GOOD = st.fixed_dictionaries(PROMPTED, optional=RIGHT).map(lambda given: [*given.values()])
SOME = st.fixed_dictionaries({}, optional=ODD) | st.fixed_dictionaries(
    PROMPTED | {"sampling_parameters": ODD["sampling_parameters"]}
)
HUGE_SHAPES = st.sampled_from([1 << 40, 1 << 62])  # by the larger one Triton 2.51 ends the model
WRONG = st.one_of(
    st.tuples(st.just("name"), st.sampled_from([*ODD]) | ENCODABLE),
    st.tuples(
        st.just("datatype"),
        st.sampled_from(["BYTES", "BOOL", "INT32", "INT64", "FP32", "FP16", "", "nonsense"]),
    ),
    st.tuples(
        st.just("shape"),
        st.lists(st.integers(-1, 3) | st.sampled_from([1 << 40, 1 << 62]), max_size=3),
    ),
    st.tuples(st.just("content"), st.binary(max_size=40)),
)


def spoilt(tensors, which, wrong):
    """One part of one tensor is another."""
    (part, value), chosen = wrong, tensors[which % len(tensors)]
    return [one._replace(**{part: value}) if one is chosen else one for one in tensors]


TENSORS = st.one_of(
    GOOD,
    SOME.map(lambda given: [*given.values()]),
    st.builds(spoilt, GOOD, st.integers(0, 9), WRONG),
)
PARAMETERS = st.dictionaries(
    NAMES | st.sampled_from(["sequence_id", "triton_x"]) | ENCODABLE,
    st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | ENCODABLE,
    max_size=2,
).map(lambda given: {"timeout": TIMEOUT_S * 1_000_000} | given)


def asking(content, output, parameters):
    """The same, for an output."""
    request = service_pb2.ModelInferRequest.FromString(content)
    asked = request.outputs.add(name=output)
    for key, value in parameters.items():
        asked.parameters[key].int64_param = value
    return request.SerializeToString()


PLAIN = st.builds(message, TENSORS, st.just({}), ENCODABLE) | st.builds(
    message, GOOD, PARAMETERS, st.just("")
)
ASKING = st.builds(
    asking,
    PLAIN,
    st.just("text_output") | ENCODABLE,
    st.dictionaries(
        st.sampled_from(["classification", "binary_data", "shared_memory_region"]) | NAMES,
        st.integers(-1, 3),
        max_size=2,
    ),
)
MESSAGES = PLAIN | ASKING


MUCH = dict.fromkeys(["max_tokens", "min_tokens", "top_k", "num_draft_tokens"], HUGE[0])
FAR_TOO_MUCH = [
    RawTensor("text_input", "BYTES", [1], strings(b"def f(")),
    RawTensor(
        "sampling_parameters", "BYTES", [1], strings(written(MUCH | {"timeout": 1}).encode())
    ),
]


def torn(whole, place, instead):
    """With another byte in one place, without it, or without all from there on."""
    place %= len(whole)
    return whole[:place] if instead is None else whole[:place] + instead + whole[place + 1 :]


TORN = st.builds(torn, MESSAGES, st.integers(0, 999), st.none() | st.binary(max_size=1))
KEYS = NAMES | st.sampled_from([*ODD]) | STRINGS
BODIES = st.one_of(
    st.builds(
        lambda given: written({"text_input": "a", "sampling_parameters": written(given)}).encode(),
        VALID | LIKELY,
    ),
    st.builds(
        lambda pairs: doubled([("text_input", "a"), ("max_tokens", 8), *pairs]).encode(),
        st.lists(st.tuples(KEYS, SCALARS | VALUES), max_size=2),
    ),
    nested(KEYS).map(str.encode),
    st.binary(max_size=40).map(lambda raw: b'{"max_tokens": 8, "text_input": "' + raw + b'"}'),
    JSON,
)


@pytest.fixture(scope="module")
def urls(triton_server):
    """The front's."""
    with front_before(triton_server.endpoints) as front:
        yield front.endpoints


@pytest.fixture(scope="module")
def expected(urls):
    """The neighbour's text. (vLLM compiles what logprobs need when they are first asked for, and
    everybody waits for some 20 s; once on a machine.)"""
    for length in (0, 4):
        assert stream(urls.grpc, PROMPT, max_tokens=8, k=length, temperature=1, logprobs=2)
    return text_of(stream(urls.grpc, PROMPT, max_tokens=16))


@pytest.fixture(autouse=True)
def everybody_lives(triton_server, urls):
    """Triton, its stub and the engine are the ones of before."""
    before = {process.pid for process in members(triton_server.identity)}
    restarts = scrape.read(urls).get((RESTARTS,), 0)
    yield
    assert {process.pid for process in members(triton_server.identity)} == before
    assert scrape.read(urls).get((RESTARTS,), 0) == restarts


@contextmanager
def neighbour(urls, expected):
    """Asks on and on, and each time gets the same text soon."""
    over, took = threading.Event(), []

    def ask_on():
        while not over.is_set():
            begun = time.monotonic()
            assert text_of(stream(urls.grpc, PROMPT, max_tokens=16)) == expected
            took.append(time.monotonic() - begun)
            assert took[-1] < STALLED_S

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask_on)
        try:
            yield asking
        finally:
            over.set()
        asking.result()
    assert took


def check(outcome, asking: Future[None], may_close=False):
    """It was answered, or refused in one sentence; the neighbour asks on."""
    assert outcome.answers or outcome.errors or may_close
    for sentence in outcome.errors:
        assert 10 < len(sentence) < LONGEST_SENTENCE
        assert not any(word in sentence for word in ACCIDENTS), sentence
    assert not asking.done(), asking.exception()


def test_any_tensors(urls, expected):
    with grpc.insecure_channel(urls.grpc) as channel, neighbour(urls, expected) as asking:

        @some(120)
        @given(MESSAGES)
        @example(message([], {}))
        @example(message(FAR_TOO_MUCH, {}))
        def send(content):
            check(over_grpc(channel, content), asking)

        send()


def test_truncation_in_a_step_without_drafts(urls):
    """Found here: vLLM's core ended with it, where nobody else was drafted for."""
    for keys in ({"top_k": 5}, {"top_p": 0.5}, {"top_k": 5, "top_p": 0.5, "logprobs": 2}):
        assert text_of(stream(urls.grpc, PROMPT, max_tokens=2, temperature=1, k=0, **keys))


def test_anything_on_a_stream(urls, expected):
    """Triton closes one on which something else than its messages comes."""
    with grpc.insecure_channel(urls.grpc) as channel, neighbour(urls, expected) as asking:

        @some(40)
        @given(TORN | st.binary(max_size=40))
        def send(content):
            check(over_grpc(channel, content), asking, may_close=not is_request(content))

        send()


def test_any_body(urls, expected):
    address = f"http://{urls.http}"
    with httpx2.Client(base_url=address) as client, neighbour(urls, expected) as asking:

        @some(120)
        @given(st.sampled_from(["generate", "generate_stream"]), BODIES)
        @example("generate", b"")
        @example("generate_stream", b'{"text_input": ' + b"[" * 45_000 + b"]" * 45_000 + b"}")
        def send(endpoint, content):
            check(over_http(client, endpoint, content), asking)

        send()
