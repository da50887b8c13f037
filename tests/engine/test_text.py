"""Streamed text: whole characters only, nothing lost, nothing of a stop string shown."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tandem.errors import InvalidRequestError
from tandem.tokenizer import (
    BYTES,
    REPLACEMENT,
    UNFINISHED_TOKENS,
    StopFinder,
    TokenDecoder,
    Tokenizer,
    _longest_token,
)
from tests.engine.checkpoints import write_tokenizer
from tests.engine.texts import EOS, byte_fallback, byte_level, chunks, eos_of

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters=REPLACEMENT), max_size=24)
SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=8)
KINDS = pytest.mark.parametrize("kind", [byte_level, byte_fallback])


def deltas(
    tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int], sizes: Sequence[int]
) -> list[str]:
    """What is handed out for each run of tokens, and at the end."""
    decoder = TokenDecoder(tokenizer, prompt, skip_special=True)
    return [decoder.push(run) for run in chunks(tokens, sizes)] + [decoder.flush()]


# -- decoding ----------------------------------------------------------------------------------


@KINDS
@settings(max_examples=150)
@example(prompt="hi", text="😀😁😂🤣 a 数据数据数据", sizes=[1])
@example(prompt="😀😁😂🤣", text="😀😁 ok", sizes=[2, 1])
@given(prompt=TEXTS.filter(bool), text=TEXTS, sizes=SIZES)
def test_deltas_add_up_to_the_whole_decode(kind, prompt, text, sizes):
    tokenizer = kind()
    before, after = tokenizer.encode_plain(prompt), tokenizer.encode_plain(text)
    parts = deltas(tokenizer, before, after, sizes)
    assert tokenizer.decode(before) + "".join(parts) == tokenizer.decode([*before, *after])


@KINDS
@settings(max_examples=100)
@given(text=TEXTS, sizes=SIZES)
def test_no_delta_holds_half_a_character(kind, text, sizes):
    tokenizer = kind()
    parts = deltas(tokenizer, tokenizer.encode("a"), tokenizer.encode_plain(text), sizes)
    assert all(REPLACEMENT not in part for part in parts)


@pytest.mark.parametrize("text", [f"a{REPLACEMENT}b", REPLACEMENT * 3, f"{REPLACEMENT * 2}😀x"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_replacement_character_in_the_text_itself_is_kept(text, size):
    tokenizer = byte_level()
    tokens = tokenizer.encode_plain(text)
    assert "".join(deltas(tokenizer, tokenizer.encode("hi"), tokens, [size])) == text


def test_the_space_before_the_first_token_is_kept():
    tokenizer = byte_fallback()
    first = tokenizer.encode_plain("b")  # a space and the letter
    assert "".join(deltas(tokenizer, tokenizer.encode("a"), first, [2])) == " b"


def test_the_space_behind_skipped_tokens_is_kept():
    tokenizer = byte_fallback()
    tokens = [*[eos_of(tokenizer)] * 9, *tokenizer.encode_plain("b")]
    assert "".join(deltas(tokenizer, tokenizer.encode("a"), tokens, [1])) == " b"


def test_bytes_that_never_become_a_character_are_not_held_for_ever():
    tokenizer = byte_level()
    lone = tokenizer.encode_plain("😀")[:1]
    parts = deltas(tokenizer, tokenizer.encode("a"), lone * 30, [1])
    assert parts == [*[""] * UNFINISHED_TOKENS, *[REPLACEMENT] * 27, REPLACEMENT * 3]


def test_an_unfinished_character_shows_at_the_end():
    tokenizer = byte_level()
    parts = deltas(tokenizer, tokenizer.encode("a"), tokenizer.encode_plain("b😀")[:-1], [1])
    assert parts[-1] == REPLACEMENT
    assert "".join(parts[:-1]) == "b"


def test_other_threads_run_while_a_long_text_is_encoded():
    tokenizer, text = byte_level(), "the cat and the dog " * 40_000
    ticks, over = [time.monotonic()], threading.Event()

    def tick() -> None:
        while not over.wait(0.001):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    tokenizer.encode(text)
    over.set()
    thread.join()
    longest = max(later - earlier for earlier, later in itertools.pairwise(ticks))
    assert longest < (ticks[-1] - ticks[0]) / 2


@settings(max_examples=200)
@given(text=TEXTS)
def test_a_text_that_the_most_tokens_may_hold_is_taken(text):
    tokenizer = byte_level()
    tokens = tokenizer.encode(text)
    assert tokenizer.prompt(text, len(tokens)) == tokens
    assert tokenizer.prompt(tokens, 1) == tokens


def test_a_text_that_can_never_fit_is_not_taken_apart(monkeypatch):
    tokenizer = byte_level()
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: ["taken apart"])
    longest = tokenizer._longest
    assert tokenizer.prompt("a" * 5 * longest, 5) == ["taken apart"]
    with pytest.raises(InvalidRequestError, match=r"characters, more than 5 tokens .*max_model"):
        tokenizer.prompt("a" * (5 * longest + 1), 5)
    assert byte_fallback().prompt("a" * 1000, 1) == ["taken apart"]  # whose texts are changed first


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Strip"}},
        {"pre_tokenizer": {"type": "Split", "behavior": "Removed"}},
        {"added_tokens": [{"content": "<e>", "lstrip": True, "rstrip": False}]},
        {"model": {"vocab": {"a": 0, "b": 1}}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_where_characters_may_go_without_a_token_no_length_is_known(change):
    added = [{"content": "<end of text>", "lstrip": False, "rstrip": False}]
    spec = {"normalizer": None, "pre_tokenizer": {"type": "ByteLevel"}}
    spec |= {"added_tokens": added, "model": {"vocab": dict.fromkeys([*BYTES, "ab"], 0)}}
    assert _longest_token(spec) == len("<end of text>")
    assert _longest_token(spec | change) is None


CUT = {"direction": "Right", "strategy": "LongestFirst", "stride": 0}


@pytest.mark.parametrize(
    "setting",
    [
        {
            "truncation": {
                "direction": "Right",
                "max_length": 2,
                "strategy": "LongestFirst",
                "stride": 0,
            }
        },
        {
            "padding": {
                "strategy": {"Fixed": 9},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "t0",
            }
        },
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_what_a_file_says_of_training_batches_does_not_hold(target, tmp_path, setting):
    spec = json.loads((target / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec | setting))
    whole, other = Tokenizer(target), Tokenizer(tmp_path)
    assert other.encode("t1 t2 t3 t4") == whole.encode("t1 t2 t3 t4")
    assert other.encode_plain("t1 t2 t3 t4") == whole.encode_plain("t1 t2 t3 t4")


# -- stop strings ------------------------------------------------------------------------------

STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


def cut(text: str, stops: Sequence[str], include: bool) -> tuple[str, bool]:
    """Reading letter by letter: the first stop string to be complete ends the text."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end if include else end - max(map(len, complete))], True
    return text, False


@settings(max_examples=300)
@example(text="abc", stops=["abc", "b"], sizes=[3], include=False)
@example(text="aab", stops=["ab"], sizes=[2, 1], include=False)
@given(text=st.text("ab", max_size=16), stops=STOPS, sizes=SIZES, include=st.booleans())
def test_text_ends_at_the_first_complete_stop_string_however_it_arrives(
    text, stops, sizes, include
):
    finder = StopFinder(stops, include)
    shown, found = "", False
    for run in chunks(list(text), sizes):
        part, found = finder.push("".join(run))
        shown += part
        if found:
            break
    assert (shown + finder.flush(), found) == cut(text, stops, include)


@pytest.mark.parametrize("text", ["a", "s", "st", "and sto", "stost"])
def test_only_a_possible_beginning_is_held_back(text):
    shown, found = StopFinder(["stop"], False).push(text)
    held = text[len(shown) :]
    assert not found
    assert "stop".startswith(held)
    assert not any("stop".startswith(text[at:]) for at in range(len(shown)))


def test_a_prompt_that_the_library_cannot_take_is_refused_alone(tmp_path):
    """It panics with what is no Exception: a thread would end by it."""

    class Panic(BaseException):
        pass

    class Panicking:
        def encode_batch_fast(self, texts, add_special_tokens):
            raise Panic("index out of bounds")

    write_tokenizer(tmp_path, 8)
    tokenizer = Tokenizer(tmp_path)
    tokenizer._tokenizer = Panicking()
    with pytest.raises(InvalidRequestError, match=r"cannot be tokenized \(Panic\)"):
        tokenizer.prompt("text", 100)


@pytest.mark.parametrize("first", [False, True])
def test_a_special_tokens_text_is_left_out_only_where_that_is_asked_for(first):
    tokenizer = byte_level.__wrapped__()  # none that remembers
    end = eos_of(tokenizer)
    for skip in (first, not first, first, not first):
        assert tokenizer.alone(end, skip) == ("" if skip else EOS)
