"""What a request's output shows: where it ends, what of it is seen, what a cut run leaves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem import SamplingParams
from tandem.drafting import Verdict
from tandem.metrics import Meters
from tandem.output import OutputStream
from tandem.tokenizer import Tokenizer
from tests.engine.builders import make_request
from tests.engine.texts import byte_fallback, byte_level, eos_of, text_of, tokens_of, write

TEXT = "stop there and stop here"
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=6)


def ids(text: str) -> list[int]:
    return byte_level().encode_plain(text)


def write_text(text: str, sizes=(1,), tokenizer: Tokenizer | None = None, **params):
    tokenizer = tokenizer or byte_level()
    params = SamplingParams(**{"max_tokens": None} | params)
    return write(tokenizer, tokenizer.encode_plain(text), params, sizes)


# -- stop strings ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [byte_level, byte_fallback])
@settings(max_examples=60)
@given(
    text=st.text("aé😀 st", max_size=20),
    stops=st.lists(st.text("aé😀 st", min_size=1, max_size=3), max_size=2),
    sizes=SIZES,
    include=st.booleans(),
)
def test_a_request_reads_the_same_however_many_tokens_a_step_verifies(
    kind, text, stops, sizes, include
):
    same = {"stop": stops, "include_stop_str_in_output": include}
    one = write_text(text, (1,), kind(), **same)
    some = write_text(text, sizes, kind(), **same)
    assert text_of(one) == text_of(some)
    assert tokens_of(one) == tokens_of(some)


@pytest.mark.parametrize("size", [1, 3, 50])
@pytest.mark.parametrize(
    ("include", "shown"), [(False, "stop there and "), (True, "stop there and stop h")]
)
def test_text_ends_at_a_stop_string(size, include, shown):
    outputs = write_text(TEXT, [size], stop="stop h", include_stop_str_in_output=include)
    assert text_of(outputs) == shown
    assert outputs[-1].finish_reason == "stop"


def test_nothing_behind_the_token_that_completes_a_stop_string_counts():
    outputs = write_text(TEXT, [50], stop=["there"])
    tokens = tokens_of(outputs)
    assert byte_level().decode(tokens) == "stop there"
    assert len(outputs[-1].drafted) == len(outputs[-1].logprobs) == len(tokens)


def test_no_beginning_of_a_stop_string_is_ever_shown():
    shown = ""
    for output in write_text("and sto and stop", stop=["stop"]):
        shown += output.text
        assert not output.finished or shown == "and sto and "
        assert not any(shown.endswith("stop"[:n]) for n in (1, 2, 3))


def test_a_held_back_beginning_is_shown_at_the_end():
    tokens = ids("and sto")
    outputs = write(
        byte_level(), tokens, SamplingParams(max_tokens=len(tokens), stop=["stop"]), [2]
    )
    assert text_of(outputs) == "and sto"
    assert outputs[-1].finish_reason == "length"


def test_a_held_back_character_is_shown_at_the_end():
    tokens = ids("a😀")[:-1]
    outputs = write(byte_level(), tokens, SamplingParams(max_tokens=len(tokens)))
    assert text_of(outputs) == "a\ufffd"


@pytest.mark.parametrize("size", [1, 4])
def test_stop_strings_are_text_until_min_tokens(size):
    least = len(ids("stop there"))
    outputs = write_text(TEXT, [size], stop="stop", min_tokens=least)
    assert text_of(outputs) == "stop there and "


# -- stop tokens and lengths -------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1,), (2,), (9,)])
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_ends_the_text_and_is_hidden(sizes, include):
    tokens = ids("the cat and")
    last = tokens[-1]
    params = SamplingParams(stop_token_ids=[last], include_stop_str_in_output=include)
    outputs = write(byte_level(), [*tokens, *tokens], params, sizes)
    assert text_of(outputs) == ("the cat and" if include else "the cat")
    assert tokens_of(outputs) == tokens
    assert outputs[-1].finish_reason == "stop"


@pytest.mark.parametrize("skip", [False, True])
def test_the_end_of_sequence_is_never_text(skip):
    tokenizer = byte_level()
    end = eos_of(tokenizer)
    params = SamplingParams(skip_special_tokens=skip, max_tokens=50)
    outputs = write(tokenizer, [*ids("the cat"), end], params, [3], stop_ids=[end])
    assert text_of(outputs) == "the cat"
    assert outputs[-1].finish_reason == "stop"


@pytest.mark.parametrize(("skip", "shown"), [(True, "the cat"), (False, "the</s> cat")])
def test_special_tokens_inside_the_text(skip, shown):
    tokenizer = byte_level()
    tokens = [*ids("the"), eos_of(tokenizer), *ids(" cat")]
    outputs = write(tokenizer, tokens, SamplingParams(skip_special_tokens=skip), [2])
    assert text_of(outputs) == shown


def test_a_held_back_beginning_is_shown_when_a_stop_token_ends_the_text():
    end = eos_of(byte_level())
    params = SamplingParams(stop=["stop"], max_tokens=50)
    outputs = write(byte_level(), [*ids("and sto"), end], params, [4], stop_ids=[end])
    assert text_of(outputs) == "and sto"


def test_a_run_is_cut_where_the_request_ends():
    tokens = ids("the cat and the dog")
    (output,) = write(byte_level(), tokens, SamplingParams(max_tokens=3), [len(tokens)])
    assert output.token_ids == tokens[:3]
    assert output.text == byte_level().decode(tokens[:3])
    assert output.drafted == [True, True, True]
    assert [entry.sampled for entry in output.logprobs] == tokens[:3]
    assert output.cumulative_logprob == -3.0
    assert output.finish_reason == "length"


def test_a_stop_token_at_the_length_limit_is_a_stop():
    tokens = ids("the cat and")
    params = SamplingParams(max_tokens=len(tokens), stop_token_ids=tokens[-1:])
    assert write(byte_level(), tokens, params, [2])[-1].finish_reason == "stop"


def test_the_last_token_of_a_run_is_the_targets_own():
    outputs = write_text("the cat and the dog", [3])
    drafted = [flag for out in outputs[:-1] for flag in out.drafted]
    assert drafted == [True, True, False] * (len(drafted) // 3)


def test_a_step_without_tokens_changes_nothing():
    request = make_request([1, 2], max_tokens=5)
    output = OutputStream(request, byte_level(), Meters()).append(Verdict([], []), [])
    assert (output.text, output.token_ids, output.finished) == ("", [], False)
