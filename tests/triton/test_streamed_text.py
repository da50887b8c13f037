"""A chunk never ends inside a character, and never shows what may become a stop string."""

import pytest

from tests.triton.conftest import PROMPT
from tests.triton.protocol import joined, responses, sampling, stream, text_of

BIASED = "éñü"  # two bytes each, the first of them shared


def whole_text(urls, parameters):
    inputs = {"text_input": PROMPT, "sampling_parameters": parameters}
    answer = list(responses(urls.grpc, inputs | {"exclude_input_in_output": True}))
    return text_of(answer)


@pytest.mark.parametrize("seed", range(4))
def test_characters_of_several_bytes_arrive_whole(urls, tokenizer, seed):
    # Only tokens of these characters are likely, and most hold a part of one character.
    bias = {str(token): 50 for token in tokenizer.encode(BIASED).ids}
    keys = {"max_tokens": 64, "temperature": 2.0, "seed": seed, "logit_bias": bias}
    answer = stream(urls.grpc, PROMPT, **keys)
    # Bytes that never became a character are left to the end by some decoders.
    expected = tokenizer.decode(joined(answer, "output_ids")).rstrip("\ufffd")
    assert any(ord(letter) > 127 and letter != "\ufffd" for letter in expected)
    assert text_of(answer).rstrip("\ufffd") == expected
    assert whole_text(urls, sampling(**keys)).rstrip("\ufffd") == expected


def test_any_tokens_at_all_make_valid_text(urls, tokenizer):
    answer = stream(urls.grpc, PROMPT, max_tokens=128, temperature=100.0, seed=3)
    expected = tokenizer.decode(joined(answer, "output_ids"))
    assert text_of(answer).rstrip("\ufffd") == expected.rstrip("\ufffd")


@pytest.mark.parametrize("start", range(5, 45, 5))
def test_a_stop_string_never_leaks(urls, greedy_text, start):
    stop = greedy_text[start : start + 5]  # begins and ends inside of tokens, mostly
    answer = stream(urls.grpc, PROMPT, max_tokens=64, stop=[stop, "never seen"])
    assert text_of(answer) == greedy_text[: greedy_text.index(stop)]
    assert joined(answer, "finish_reason")[-1] == b"stop"
    parameters = sampling(max_tokens=64, stop=stop)
    assert whole_text(urls, parameters) == text_of(answer)


def test_a_stop_string_is_kept_on_request(urls, greedy_text):
    stop = greedy_text[20:25]
    keys = {"max_tokens": 64, "stop": stop, "include_stop_str_in_output": True}
    answer = stream(urls.grpc, PROMPT, **keys)
    assert text_of(answer) == greedy_text[: greedy_text.index(stop) + len(stop)]


def test_the_beginning_of_a_stop_string_is_only_held_back(urls, greedy_text):
    stops = [greedy_text[start : start + 4] + "\0" for start in (3, 9, 20, len(greedy_text) - 4)]
    answer = stream(urls.grpc, PROMPT, max_tokens=64, stop=stops)
    assert text_of(answer) == greedy_text
    assert joined(answer, "finish_reason")[-1] == b"length"
