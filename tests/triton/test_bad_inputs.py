"""Every bad request gets one sentence that names what is wrong."""

import json
import re

import pytest

from tests.triton.conftest import PROMPT
from tests.triton.protocol import Refused, joined, post, responses, stream, text_of

LONG = "x = 1\n" * 20_000
HUGE = 5 << 20  # bytes

BAD_SAMPLING = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": [5]}, "max_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"seed": "x"}, "seed"),
    ({"seed": 1 << 80}, "seed"),
    ({"n": 2}, "'n'"),
    ({"stop": 5}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop_token_ids": "a"}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logit_bias": {"999999999": 1}}, "logit_bias"),
    ({"logit_bias": dict.fromkeys(map(str, range(1025)), 1)}, "logit_bias"),
    ({"stop": ["x"] * 33}, "stop"),
    ({"stop": "x" * 257}, "stop"),
    ({"best_of": 2}, "best_of"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": 1_000_000}, "logprobs"),
    ({"bad_words": [1]}, "bad_words"),
    ({"ignore_eos": "perhaps"}, "ignore_eos"),
    ({"priority": "high"}, "priority"),
    ({"speculative_method": "telepathy"}, "was loaded with"),
]

BAD_INPUTS = [
    ({}, "text_input"),
    ({"text_input": ""}, "text_input"),
    ({"text_input": "x = 1\n" * 2_000}, "tokens, but"),
    ({"text_input": LONG}, "characters, more than"),  # it is not taken apart
    ({"text_input": "x" * HUGE}, "max_prompt_bytes"),
    ({"input_ids": [5] * (HUGE // 4)}, "max_prompt_bytes"),
    ({"text_input": PROMPT, "sampling_parameters": " " * HUGE + "{}"}, "max_prompt_bytes"),
    ({"text_input": b"caf\xe9 \xff\xfe"}, "text_input"),
    ({"text_input": PROMPT, "image": ["aGk="]}, "image"),
    ({"text_input": PROMPT, "num_draft_tokens": -1}, "num_draft_tokens"),
    ({"text_input": PROMPT, "sampling_parameters": '{"max_tokens": '}, "sampling_parameters"),
    ({"text_input": PROMPT, "sampling_parameters": "[1]"}, "sampling_parameters"),
    ({"text_input": PROMPT, "sampling_parameters": "null"}, "sampling_parameters"),
    ({"text_input": PROMPT, "sampling_parameters": b'{"stop": "\xff"}'}, "sampling_parameters"),
    ({"text_input": PROMPT, "sampling_parameters": "[" * 100_000}, "sampling_parameters"),
    ({"text_input": PROMPT, "input_ids": [5]}, "input_ids"),
    ({"input_ids": [-1]}, "token id -1"),
    ({"input_ids": [5, 2_000_000_000]}, "token id 2000000000"),
]


@pytest.fixture(autouse=True)
def next_request_works(urls):
    yield
    assert text_of(stream(urls.grpc, PROMPT, max_tokens=2))


def refusal(urls, inputs, parameters=None):
    with pytest.raises(Refused) as error:
        list(responses(urls.grpc, inputs, parameters))
    assert_is_a_sentence(str(error.value))
    return str(error.value)


def assert_is_a_sentence(text):
    assert 10 < len(text) < 400
    assert "\n" not in text
    assert not any(word in text for word in ("Traceback", "Error:", "NoneType", "object at 0x"))


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(("keys", "name"), BAD_SAMPLING, ids=lambda value: str(value)[:40])
def test_bad_sampling_parameters(urls, keys, name, streamed):
    inputs = {"text_input": PROMPT, "sampling_parameters": json.dumps(keys), "stream": streamed}
    assert name in refusal(urls, inputs)


@pytest.mark.parametrize(("inputs", "name"), BAD_INPUTS, ids=lambda value: str(value)[:60])
def test_bad_inputs(urls, inputs, name):
    assert name in refusal(urls, inputs)


def test_bad_request_parameters(urls):
    assert "max_tokens" in refusal(urls, {"text_input": PROMPT}, {"max_tokens": 0})


@pytest.mark.parametrize("endpoint", ["generate", "generate_stream"])
def test_bad_requests_over_http(urls, endpoint):
    streamed = endpoint == "generate_stream"
    for keys, name in BAD_SAMPLING[:5]:
        body = {"text_input": PROMPT, "sampling_parameters": json.dumps(keys), "stream": streamed}
        response = post(urls.http, body, endpoint)
        assert response.status_code == 400
        sentence = json.loads(response.text.removeprefix("data: "))["error"]
        assert_is_a_sentence(sentence)
        assert name in sentence


def test_a_body_that_is_no_json(urls):
    assert post(urls.http, b'{"text_in').status_code >= 400
    assert post(urls.http, b"\xff\xfe").status_code >= 400


def test_tensors_that_do_not_fit_the_declaration(urls):
    for inputs in ({"text_input": ["a", "b"]}, {"text_input": PROMPT, "surprise": "x"}):
        with pytest.raises(Refused):
            list(responses(urls.grpc, inputs))


def test_a_text_that_reaches_the_models_length_ends_there(urls):
    sentence = refusal(urls, {"text_input": LONG})
    max_model_len = min(int(number) for number in re.findall(r"\d+", sentence))
    answer = stream(urls.grpc, [40] * (max_model_len - 4), max_tokens=100)
    assert joined(answer, "finish_reason")[-1] == b"length"
    assert 1 <= len(joined(answer, "output_ids")) <= 4
