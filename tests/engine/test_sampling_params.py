"""SamplingParams: defaults, leniency where clients need it, one clear sentence otherwise."""

from __future__ import annotations

import pickle

import pytest

from tandem import SamplingParams
from tandem.errors import InvalidRequestError

NAN, INF = float("nan"), float("inf")
NUMBER_WORDS = ["many", "", NAN, INF, "nan", [1], {}, True, False, "true"]
MANY = dict.fromkeys(range(1025), 1.0)
MOST = dict.fromkeys(range(1024), 1.0)

BAD = {
    "max_tokens": [0, -1, 1.5, "0", *NUMBER_WORDS],
    "min_tokens": [-1, 2.5, None, *NUMBER_WORDS],
    "temperature": [-0.1, 101, None, *NUMBER_WORDS],
    "top_p": [0, -0.5, 1.01, None, *NUMBER_WORDS],
    "top_k": [-2, 1.5, None, *NUMBER_WORDS],
    "min_p": [-0.1, 1.1, None, *NUMBER_WORDS],
    "seed": [1 << 63, -(1 << 63) - 1, 0.5, *NUMBER_WORDS],
    "stop": ["", [""], 3, [3], [None], {"a": 1}, "\ud800", True, ["a"] * 33, "a" * 257],
    "stop_token_ids": [-1, [-1], 3, ["x"], [1.5], [True], "3", [1] * 1025],
    "ignore_eos": ["maybe", 2, 0.5, None, []],
    "presence_penalty": [-2.1, 2.1, None, *NUMBER_WORDS],
    "frequency_penalty": [-2.1, 2.1, None, *NUMBER_WORDS],
    "repetition_penalty": [0, -1, 101, None, *NUMBER_WORDS],
    "logit_bias": [[1], 3, "x", {"x": 1}, {-1: 1}, {1: 101}, {1: NAN}, {1: True}, {True: 1}, MANY],
    "logprobs": [-1, 21, 1.5, *(word for word in NUMBER_WORDS if not isinstance(word, bool))],
    "best_of": [0, 2, None, *NUMBER_WORDS],
    "n": [0, 2, None, *NUMBER_WORDS],
    "bad_words": ["", [""], 3, [3], [True], ["a"] * 129, ["a" * 129]],
    "skip_special_tokens": ["maybe", 2, None],
    "include_stop_str_in_output": ["maybe", 2, None],
    "num_draft_tokens": [-1, 1.5, *NUMBER_WORDS],
    "speculative_method": ["", "x" * 65, 3, True, ["ngram"], {}],
    "priority": [1.5, None, 1_000_001, -1_000_001, *NUMBER_WORDS],
    "timeout": [0, -1, 1e7, *NUMBER_WORDS],
}

GOOD = {
    "max_tokens": [("100", 100), (7.0, 7), (None, None)],
    "min_tokens": [("0", 0)],
    "temperature": [("0.5", 0.5), (0, 0.0)],
    "top_p": [("1", 1.0)],
    "top_k": [("40", 40), (-1, -1), (0, 0)],
    "min_p": [("0.05", 0.05)],
    "seed": [("-1", -1), (-(1 << 63), -(1 << 63)), ((1 << 63) - 1, (1 << 63) - 1), (None, None)],
    "stop": [("end", ["end"]), (["a", "b"], ["a", "b"]), ([], []), (["a" * 256] * 32,) * 2],
    "stop_token_ids": [(["3", 4], [3, 4]), ([1] * 1024,) * 2],
    "ignore_eos": [("true", True), ("False", False), (1, True)],
    "presence_penalty": [("-2", -2.0)],
    "frequency_penalty": [("1.5", 1.5)],
    "repetition_penalty": [("1.1", 1.1)],
    "logit_bias": [({"5": "-1.5", 6: 2}, {5: -1.5, 6: 2.0}), (MOST, MOST)],
    "logprobs": [("0", 0), (20, 20), (None, None), (False, None), (True, 1)],
    "best_of": [("1", 1)],
    "n": [("1", 1)],
    "bad_words": [(["no"], ["no"]), (["a" * 128] * 128,) * 2],
    "skip_special_tokens": [("false", False)],
    "include_stop_str_in_output": [("true", True)],
    "num_draft_tokens": [("0", 0), (None, None)],
    "speculative_method": [("ngram", "ngram"), ("none", "none"), (None, None)],
    "priority": [("-3", -3), (1_000_000, 1_000_000)],
    "timeout": [("2.5", 2.5), (None, None)],
}


def flat(table: dict[str, list]) -> list[tuple]:
    return [(key, value) for key, values in table.items() for value in values]


def test_the_tables_cover_every_field():
    assert set(BAD) == set(GOOD) == set(SamplingParams.model_fields)


@pytest.mark.parametrize(("key", "value"), flat(BAD))
def test_a_bad_value_is_refused_in_one_sentence_that_names_the_key(key, value):
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{key: value})
    text = str(caught.value)
    assert text.startswith(f"The sampling parameter {key!r} is ")
    assert text.endswith(".")
    assert "\n" not in text
    assert "but it must " in text


@pytest.mark.parametrize(("key", "value"), flat(GOOD))
def test_values_may_be_strings(key, value):
    given, expected = value
    found = getattr(SamplingParams(**{key: given}), key)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("temprature", "use temperature"),
        ("max-tokens", "use max_tokens"),
        ("best-of", "use best_of"),
        *((key, "remove it or correct its name") for key in ("self", "model_config", "")),
    ],
)
def test_an_unknown_key_is_named(key, remedy):
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{key: 1})
    assert str(caught.value) == f"Unknown sampling parameter {key!r}: {remedy}."


def test_an_unknown_key_may_be_long():
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{"max_tokens" * 100_000: 1})
    assert len(str(caught.value)) < 250


def test_long_values_are_shortened_in_the_sentence():
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(max_tokens="9" * 10_000 + "x")
    assert len(str(caught.value)) < 250


def test_the_minimum_may_not_exceed_the_maximum():
    with pytest.raises(InvalidRequestError, match=r"^min_tokens is 5 but max_tokens is 4: .*\.$"):
        SamplingParams(min_tokens=5, max_tokens=4)
    assert SamplingParams(min_tokens=4, max_tokens=4).min_tokens == 4
    assert SamplingParams(min_tokens=99, max_tokens=None).min_tokens == 99


def test_defaults_are_those_of_vllm():
    expected = {
        "max_tokens": 16,
        "min_tokens": 0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": None,
        "stop": [],
        "stop_token_ids": [],
        "ignore_eos": False,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logprobs": None,
        "n": 1,
        "skip_special_tokens": True,
        "include_stop_str_in_output": False,
    }
    found = SamplingParams().model_dump()
    assert {key: found[key] for key in expected} == expected


def test_they_do_not_change_and_cross_a_process_border():
    params = SamplingParams(stop="x", logit_bias={"3": 1})
    with pytest.raises(ValueError, match="frozen"):
        params.max_tokens = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(params)) == params


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (9e-6, True), (1e-5, False)])
def test_tiny_temperatures_mean_greedy(temperature, greedy):
    assert SamplingParams(temperature=temperature).greedy is greedy
