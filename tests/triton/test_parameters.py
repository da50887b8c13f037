"""Sampling parameters: where they come from, their defaults, what they do."""

import json

import pytest

from tests.triton.conftest import PROMPT
from tests.triton.protocol import (
    Refused,
    events,
    joined,
    post,
    responses,
    sampling,
    stream,
    text_of,
)

ASK = {"text_input": PROMPT, "stream": True, "return_output_ids": True}


def ids(urls, parameters=None, **inputs):
    return joined(responses(urls.grpc, ASK | inputs, parameters), "output_ids")


def sample(urls, **keys):
    return ids(urls, sampling_parameters=sampling(**keys))


def test_defaults_are_sixteen_tokens_at_temperature_one(urls):
    assert len(ids(urls, sampling_parameters='{"ignore_eos": true}')) == 16
    parameters = json.dumps({"ignore_eos": True, "max_tokens": 48})
    samples = {tuple(ids(urls, sampling_parameters=parameters)) for _ in range(4)}
    assert len(samples) > 1


def test_without_any_parameters(urls):
    assert 1 <= len(ids(urls)) <= 16
    assert 1 <= len(ids(urls, sampling_parameters="{}")) <= 16


def test_values_may_be_strings(urls):
    strings = {"max_tokens": "100", "temperature": "0", "top_p": "1.0", "ignore_eos": "true"}
    answer = ids(urls, sampling_parameters=json.dumps(strings))
    assert len(answer) == 100
    assert answer == sample(urls, max_tokens=100)


def test_the_requests_own_parameters_count_without_the_tensor(urls):
    parameters = {"max_tokens": 5, "temperature": 0.0, "ignore_eos": True}
    assert ids(urls, parameters) == sample(urls, max_tokens=5)


def test_the_tensor_wins_over_the_requests_parameters(urls):
    assert len(ids(urls, {"max_tokens": 3}, sampling_parameters=sampling(max_tokens=6))) == 6


def test_tritons_own_timeout_holds(urls):
    asked = ASK | {"sampling_parameters": sampling(max_tokens=1900)}
    with pytest.raises(Refused, match=r"timeout of 0\.1 s"):
        list(responses(urls.grpc, asked, microseconds=100_000))


def test_undeclared_keys_of_generate_are_parameters(urls):
    body = {"text_input": PROMPT, "exclude_input_in_output": True}
    keys = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
    response = post(urls.http, body | keys)
    assert response.status_code == 200
    assert response.json()["text_output"] == text_of(stream(urls.grpc, PROMPT, max_tokens=5))
    frames = events(post(urls.http, body | keys | {"stream": True}, "generate_stream"))
    assert "".join(frame["text_output"] for frame in frames) == response.json()["text_output"]


@pytest.mark.parametrize("in_tensor", [True, False])
def test_an_unknown_key_is_named(urls, in_tensor):
    keys = {"max_tokens": 5, "temprature": 0.5}
    with pytest.raises(Refused, match="temprature"):
        if in_tensor:
            ids(urls, sampling_parameters=json.dumps(keys))
        else:
            ids(urls, keys)


def test_every_key_of_the_contract_is_accepted(urls):
    keys = {
        "max_tokens": 4,
        "min_tokens": 1,
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.01,
        "seed": 7,
        "stop": ["never-seen"],
        "stop_token_ids": [3],
        "ignore_eos": True,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": -1.0},
        "logprobs": 1,
        "n": 1,
        "bad_words": ["never"],
        "skip_special_tokens": True,
        "include_stop_str_in_output": False,
        "timeout": 60,
        "priority": -1,
        "speculative_method": "draft_model",
    }
    assert 1 <= len(ids(urls, sampling_parameters=json.dumps(keys))) <= 4


def test_a_seed_makes_sampling_repeatable(urls):
    keys = {"max_tokens": 32, "temperature": 1.0}
    assert sample(urls, seed=1, **keys) == sample(urls, seed=1, **keys)
    assert len({tuple(sample(urls, seed=seed, **keys)) for seed in range(4)}) > 1


def test_a_bias_and_a_ban_change_the_choice(urls, tokenizer):
    [first] = sample(urls, max_tokens=1)
    other = 40 if first != 40 else 41
    assert sample(urls, max_tokens=3, logit_bias={str(other): 100}) == [other] * 3
    assert sample(urls, max_tokens=1, logit_bias={str(first): -100}) != [first]
    text = text_of(stream(urls.grpc, PROMPT, max_tokens=16))
    word = text.split()[0]
    assert word not in text_of(stream(urls.grpc, PROMPT, max_tokens=16, bad_words=[word]))


def test_min_tokens_holds_a_stop_token_back(urls):
    expected = sample(urls, max_tokens=16)
    keys = {"max_tokens": 16, "stop_token_ids": [expected[2]]}
    assert len(sample(urls, **keys)) <= 3
    assert len(sample(urls, min_tokens=8, **keys)) >= 8


def test_token_ids_replace_the_text(urls, tokenizer):
    prompt = tokenizer.encode(PROMPT).ids
    answer = stream(urls.grpc, prompt, max_tokens=16)
    assert joined(answer, "output_ids") == sample(urls, max_tokens=16)
    assert set(joined(answer, "num_input_tokens")) == {len(prompt)}
    body = {"input_ids": prompt, "exclude_input_in_output": True}
    body["sampling_parameters"] = sampling(max_tokens=16)
    assert post(urls.http, body).json()["text_output"] == text_of(answer)
