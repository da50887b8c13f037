"""What a response holds: text, reasons, counts, log-probabilities."""

import json
import math

import pytest

from tests.triton.conftest import PROMPT
from tests.triton.protocol import (
    Refused,
    events,
    joined,
    last_of,
    post,
    responses,
    sampling,
    stream,
    text_of,
)


def whole(urls, **inputs):
    """A request that is not streamed; its one response with outputs."""
    answer = list(responses(urls.grpc, {"text_input": PROMPT} | inputs))
    [response] = [response for response in answer if response.outputs]
    return response


def test_only_the_text_comes_unasked(urls):
    for streamed in (True, False):
        inputs = {"text_input": PROMPT, "stream": streamed}
        answer = list(responses(urls.grpc, inputs))
        assert all(set(response.outputs) <= {"text_output"} for response in answer)
        assert text_of(answer)


@pytest.mark.parametrize(
    "name",
    [
        "finish_reason",
        "cumulative_logprob",
        "logprobs",
        "num_input_tokens",
        "num_output_tokens",
        "output_ids",
    ],
)
def test_an_optional_output_comes_when_asked_for_and_not_when_refused(urls, name):
    parameters = sampling(max_tokens=4, logprobs=1)
    asked = whole(urls, sampling_parameters=parameters, **{f"return_{name}": True})
    assert set(asked.outputs) == {"text_output", name}
    refused = whole(urls, sampling_parameters=parameters, **{f"return_{name}": False})
    assert set(refused.outputs) == {"text_output"}


def test_the_prompt_comes_first_unless_excluded(urls):
    parameters = sampling(max_tokens=8)
    included = whole(urls, sampling_parameters=parameters)
    explicit = whole(urls, sampling_parameters=parameters, exclude_input_in_output=False)
    excluded = whole(urls, sampling_parameters=parameters, exclude_input_in_output=True)
    assert included.text == explicit.text == PROMPT + excluded.text
    assert excluded.text
    assert not excluded.text.startswith(PROMPT)


def test_a_prompt_of_any_language_comes_back_whole(urls):
    prompt = "# größer, 大きい, 😀\n"
    inputs = {"text_input": prompt, "sampling_parameters": sampling(max_tokens=2)}
    [answer] = [one for one in responses(urls.grpc, inputs) if one.outputs]
    assert answer.text.startswith(prompt)
    assert post(urls.http, inputs).json()["text_output"] == answer.text


def test_streamed_text_is_a_delta(urls):
    parameters = {"sampling_parameters": sampling(max_tokens=32)}
    excluded = whole(urls, exclude_input_in_output=True, **parameters)
    for extra in ({}, {"exclude_input_in_output": True}):
        inputs = {"text_input": PROMPT, "stream": True} | parameters | extra
        answer = list(responses(urls.grpc, inputs))
        assert sum(bool(response.outputs) for response in answer) > 2
        assert text_of(answer) == excluded.text


def test_streaming_the_prompt_is_an_error_that_says_so(urls):
    inputs = {"text_input": PROMPT, "stream": True, "exclude_input_in_output": False}
    with pytest.raises(Refused, match="exclude_input_in_output") as error:
        list(responses(urls.grpc, inputs))
    assert "stream" in str(error.value)


def test_finish_reasons(urls, greedy_text):
    length = joined(stream(urls.grpc, PROMPT, max_tokens=32), "finish_reason")
    assert set(length[:-1]) == {b"None"}
    assert length[-1] == b"length"
    word = greedy_text[20:24]
    stop = joined(stream(urls.grpc, PROMPT, max_tokens=64, stop=word), "finish_reason")
    assert set(stop[:-1]) <= {b"None"}
    assert stop[-1] == b"stop"


def test_a_stop_token_ends_the_text(urls):
    ids = joined(stream(urls.grpc, PROMPT, max_tokens=32), "output_ids")
    answer = stream(urls.grpc, PROMPT, max_tokens=32, stop_token_ids=[ids[9]])
    assert joined(answer, "finish_reason")[-1] == b"stop"
    first = ids.index(ids[9])
    assert joined(answer, "output_ids")[:first] == ids[:first]
    assert len(joined(answer, "output_ids")) <= first + 1


@pytest.mark.parametrize("streamed", [True, False])
def test_the_final_flag_comes_once_and_the_last_tokens_with_the_reason(urls, streamed):
    inputs = {"text_input": PROMPT, "stream": streamed, "sampling_parameters": sampling()}
    asked = {"return_finish_reason": True, "return_output_ids": True}
    answer = list(responses(urls.grpc, inputs | asked))
    assert [response.final for response in answer] == [False] * (len(answer) - 1) + [True]
    assert last_of(answer)["finish_reason"] == [b"length"]
    assert last_of(answer)["output_ids"]


def test_counts_are_deltas_of_tokens(urls, tokenizer):
    answer = stream(urls.grpc, PROMPT, max_tokens=24)
    for response in answer:
        if response.outputs:
            assert response.outputs["num_output_tokens"] == [len(response.outputs["output_ids"])]
    assert sum(joined(answer, "num_output_tokens")) == 24
    assert set(joined(answer, "num_input_tokens")) == {len(tokenizer.encode(PROMPT).ids)}


def test_counts_of_a_whole_answer(urls):
    streamed = stream(urls.grpc, PROMPT, max_tokens=24)
    asked = ("return_num_output_tokens", "return_output_ids", "return_num_input_tokens")
    response = whole(
        urls, sampling_parameters=sampling(max_tokens=24), **dict.fromkeys(asked, True)
    )
    assert response.outputs["num_output_tokens"] == [24]
    assert response.outputs["num_input_tokens"] == joined(streamed, "num_input_tokens")[:1]
    assert response.outputs["output_ids"] == joined(streamed, "output_ids")


def test_ids_decode_to_the_text(urls, tokenizer):
    answer = stream(urls.grpc, PROMPT, max_tokens=48)
    assert tokenizer.decode(joined(answer, "output_ids")) == text_of(answer)


def test_logprobs_are_a_list_with_an_entry_a_token(urls):
    inputs = {
        "text_input": PROMPT,
        "stream": True,
        "sampling_parameters": sampling(max_tokens=12, logprobs=2),
        "return_logprobs": True,
        "return_cumulative_logprob": True,
        "return_output_ids": True,
    }
    total = 0.0
    for response in responses(urls.grpc, inputs):
        if not response.outputs:
            continue
        ids = response.outputs["output_ids"]
        for entry, token in zip(json.loads(response.outputs["logprobs"][0]), ids, strict=True):
            # Greedy: the sampled token is the likelier of the two.
            assert sorted(item["rank"] for item in entry.values()) == [1, 2]
            assert set(entry[str(token)]) == {"logprob", "rank", "decoded_token"}
            assert entry[str(token)]["rank"] == 1
            assert sum(math.exp(item["logprob"]) for item in entry.values()) < 1.0001
            total += entry[str(token)]["logprob"]
        assert response.outputs["cumulative_logprob"] == [pytest.approx(total, abs=1e-3)]
    assert total < 0


def test_a_cumulative_logprob_needs_no_logprobs(urls):
    response = whole(
        urls, sampling_parameters=sampling(max_tokens=4), return_cumulative_logprob=True
    )
    [value] = response.outputs["cumulative_logprob"]
    assert value < 0
    assert math.isfinite(value)


def test_http_generate_and_generate_stream(urls, greedy_text):
    body = {"text_input": PROMPT, "sampling_parameters": sampling(max_tokens=64)}
    response = post(urls.http, body)
    assert response.status_code == 200
    assert response.json()["text_output"] == PROMPT + greedy_text
    streamed = post(urls.http, body | {"stream": True}, "generate_stream")
    assert streamed.status_code == 200
    assert "".join(event["text_output"] for event in events(streamed)) == greedy_text
