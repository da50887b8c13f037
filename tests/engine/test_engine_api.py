"""Engine in the caller's own process: generate, stream, errors, and what is left behind."""

from __future__ import annotations

import gc
import io
import json
import shutil
import weakref
from pathlib import Path

import pytest

from tandem import Engine, EngineConfig, SamplingParams
from tandem.errors import InvalidRequestError, QueueFullError, RequestTimeoutError

PROMPTS = ["t1 t2 t3", "t4 t5", "t6", "t7 t8 t9 t10"]
GREEDY = SamplingParams(temperature=0, max_tokens=12)


def drain(engine) -> None:
    while not engine.idle:
        engine.step()


# -- generate ----------------------------------------------------------------------------------


def test_one_string_one_list_of_ids_or_many_of_either(engine):
    one = engine()
    (text,) = one.generate("t1 t2 t3", GREEDY)
    (ids,) = one.generate([1, 2, 3], GREEDY)
    many = one.generate(["t1 t2 t3", [1, 2, 3]], GREEDY)
    assert text.token_ids == ids.token_ids
    assert [out.token_ids for out in many] == [text.token_ids] * 2
    assert one.generate([], GREEDY) == []


def test_outputs_are_whole_and_in_order(engine):
    one = engine(max_num_seqs=2)
    lengths = [9, 3, 7, 1]
    params = [SamplingParams(temperature=0, max_tokens=n) for n in lengths]
    outputs = one.generate(PROMPTS, params)
    for prompt, single, output in zip(PROMPTS, params, outputs, strict=True):
        (alone,) = one.generate(prompt, single)
        assert output.token_ids == alone.token_ids
        assert output.text == " " + one.tokenizer.decode(output.token_ids)
        assert output.num_prompt_tokens == len(prompt.split())
        assert output.finish_reason == "length"
    assert [len(output.token_ids) for output in outputs] == lengths


def test_more_prompts_than_the_queue_holds(engine):
    outputs = engine(max_queue_size=2, max_num_seqs=2).generate(["t1"] * 9, GREEDY)
    assert len({tuple(output.token_ids) for output in outputs}) == 1
    assert len(outputs) == 9


def test_preempted_requests_do_not_count_against_the_queue(engine):
    one = engine(max_queue_size=1, kv_cache_memory="50KiB", max_model_len=64)
    params = SamplingParams(max_tokens=60, temperature=0)
    assert len(one.generate([[5, n] for n in range(7)], params)) == 7
    assert one.stats().preemptions > 0


def test_priorities_decide_who_of_those_waiting_is_begun(engine):
    one = engine(max_num_seqs=1)
    params = [SamplingParams(max_tokens=3, priority=priority) for priority in (5, 0, -5, 0)]
    for name, prompt, single in zip("abcd", PROMPTS, params, strict=True):
        one.add_request(prompt, single, name)
    ended = []
    while not one.idle:
        ended += [output.request_id for output in one.step() if output.finished]
    assert "".join(ended) == "cbda"


def test_default_parameters_are_used_where_none_are_given(engine):
    (output,) = engine().generate("t1")
    assert len(output.token_ids) == 16


@pytest.mark.parametrize(("count", "shown"), [(7, False), (8, True)])
def test_a_progress_bar_is_shown_for_many_prompts_alone(engine, monkeypatch, count, shown):
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    engine().generate(["t1"] * count, SamplingParams(max_tokens=2))
    assert (f"{count}/{count}" in screen.getvalue()) is shown


@pytest.mark.parametrize(
    ("prompts", "params", "said"),
    [
        ([[1], []], GREEDY, "The prompt is empty"),
        (["t1", ""], GREEDY, "The prompt is empty"),
        ([[1], [1] * 256], GREEDY, "has 256 tokens"),
        ([[1], [96]], GREEDY, "token id 96 in prompt"),
        ([[1], [-1]], GREEDY, "token id -1 in prompt"),
        ([[1], [2]], SamplingParams(stop_token_ids=[3, 96]), "token id 96 in stop_token_ids"),
        ([[1], [2]], SamplingParams(logit_bias={200: 1}), "token id 200 in logit_bias"),
        ([[1], [2]], [GREEDY], "2 prompts but 1 SamplingParams"),
        (["t1", "\ud800"], GREEDY, "not valid Unicode"),
    ],
)
def test_errors_come_before_anything_is_begun(engine, prompts, params, said):
    one = engine()
    with pytest.raises(InvalidRequestError, match=said):
        one.generate(prompts, params)
    assert one.idle
    assert one.generate([1], GREEDY)


def test_an_interrupted_call_leaves_nothing_behind(engine, monkeypatch):
    one = engine()
    steps = iter(range(2))
    step = one.step

    def interrupted():
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(one, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.generate(PROMPTS, GREEDY)
    monkeypatch.undo()
    assert one.idle
    assert len(one.generate(["t1", "t2"], GREEDY)) == 2


# -- stream ------------------------------------------------------------------------------------


def test_a_stream_adds_up_to_what_generate_returns(engine, good_draft):
    one = engine(draft_model=good_draft)
    (whole,) = one.generate("t1 t2 t3", GREEDY)
    parts = list(one.stream("t1 t2 t3", GREEDY))
    assert "".join(part.text for part in parts) == whole.text
    assert [token for part in parts for token in part.token_ids] == whole.token_ids
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]
    assert len(parts) < len(whole.token_ids), "no run of tokens was accepted"


def test_each_part_carries_the_statistics_of_its_time(engine, good_draft):
    parts = list(engine(draft_model=good_draft).stream("t1 t2 t3", GREEDY))
    drafted = [part.stats.drafted for part in parts]
    assert drafted == sorted(drafted)
    assert drafted[0] < drafted[-1]
    last = parts[-1].stats
    assert last.rounds == len(parts) - 1
    assert last.acceptance_rate == pytest.approx(last.accepted / last.drafted)


def test_leaving_a_stream_early_frees_its_kv(engine):
    one = engine()
    stream = one.stream("t1 t2 t3", SamplingParams(max_tokens=None))
    next(stream)
    assert one.stats().blocks_used > 0
    stream.close()
    assert one.idle
    assert one.stats().blocks_used == 0
    one.check_integrity()


def test_streams_side_by_side_lose_nothing(engine):
    one = engine()
    alone = [out.text for out in one.generate(PROMPTS[:2], GREEDY)]
    streams = [one.stream(prompt, GREEDY) for prompt in PROMPTS[:2]]
    texts = ["", ""]
    for parts in zip(*streams, strict=False):
        texts = [text + part.text for text, part in zip(texts, parts, strict=True)]
    texts = [text + "".join(p.text for p in s) for text, s in zip(texts, streams, strict=True)]
    assert texts == alone


def test_generate_inside_a_stream_takes_nothing_from_it(engine):
    one = engine()
    expected = [out.text for out in one.generate(PROMPTS[:2], GREEDY)]
    stream = one.stream(PROMPTS[0], GREEDY)
    text = next(stream).text
    inner = one.generate([PROMPTS[1]], GREEDY)
    text += "".join(part.text for part in stream)
    assert [text, *(out.text for out in inner)] == expected


def test_a_bad_prompt_is_refused_before_the_first_part(engine):
    one = engine()
    with pytest.raises(InvalidRequestError, match="empty"):
        next(one.stream(""))
    assert one.idle


# -- lengths and ends --------------------------------------------------------------------------


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("prompt", [1, 37, 254, 255])
def test_without_max_tokens_text_ends_at_the_models_limit(engine, good_draft, draft, prompt):
    one = engine(**({"draft_model": good_draft} if draft else {}))
    (output,) = one.generate([5] * prompt, SamplingParams(max_tokens=None, temperature=0))
    assert prompt + len(output.token_ids) == 256
    assert output.finish_reason == "length"


@pytest.mark.parametrize("most", [1, 2, 5, 6, 7])
def test_max_tokens_is_never_exceeded(engine, good_draft, most):
    one = engine(draft_model=good_draft, num_speculative_tokens=5)
    params = SamplingParams(max_tokens=most, temperature=0)
    assert [len(out.token_ids) for out in one.generate(PROMPTS, params)] == [most] * 4


def test_a_lower_max_model_len_holds(engine):
    one = engine(max_model_len=20)
    (output,) = one.generate([5] * 15, SamplingParams(max_tokens=99))
    assert len(output.token_ids) == 5
    with pytest.raises(InvalidRequestError, match="may have 20: shorten the prompt or raise"):
        one.generate([5] * 20)


@pytest.mark.parametrize("draft", [False, True])
def test_a_stop_token_ends_the_request_inside_a_run(engine, good_draft, draft):
    one = engine(**({"draft_model": good_draft, "num_speculative_tokens": 8} if draft else {}))
    (free,) = one.generate("t1 t2 t3", GREEDY)
    for token in dict.fromkeys(free.token_ids):
        end = free.token_ids.index(token) + 1
        params = SamplingParams(temperature=0, max_tokens=12, stop_token_ids=[token])
        (output,) = one.generate("t1 t2 t3", params)
        assert output.token_ids == free.token_ids[:end]
        assert output.finish_reason == "stop"


def test_min_tokens_keeps_a_stop_token_out(engine, good_draft):
    one = engine(draft_model=good_draft)
    (free,) = one.generate("t1 t2 t3", GREEDY)
    stop = free.token_ids[0]
    params = SamplingParams(temperature=0, max_tokens=12, stop_token_ids=[stop], min_tokens=6)
    (output,) = one.generate("t1 t2 t3", params)
    assert stop not in output.token_ids[:6]
    assert len(output.token_ids) >= 6


def test_bad_words_are_not_written(engine, good_draft):
    one = engine(draft_model=good_draft)
    (free,) = one.generate("t1 t2 t3", GREEDY)
    words = [f"t{free.token_ids[0]}", "t{} t{}".format(*free.token_ids[4:6])]
    params = SamplingParams(temperature=0, max_tokens=12, bad_words=words)
    (output,) = one.generate("t1 t2 t3", params)
    assert not any(f" {word} " in output.text + " " for word in words)


def test_a_bad_word_that_the_model_cannot_write_is_nothing(engine, target, tmp_path):
    """As where a tokenizer has more tokens than the model: the step would end for all."""
    folder = Path(shutil.copytree(target, tmp_path / "model"))
    spec = json.loads((folder / "tokenizer.json").read_text())
    more = {"id": 96, "content": "[PAD]", "special": True, "normalized": False}
    more |= dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    (folder / "tokenizer.json").write_text(json.dumps(spec | {"added_tokens": [more]}))
    one = engine(model=folder)
    params = SamplingParams(temperature=0, max_tokens=12, bad_words=["[PAD]"])
    (output,) = one.generate("t1 t2 t3", params)
    assert output.token_ids == one.generate("t1 t2 t3", GREEDY)[0].token_ids


@pytest.mark.parametrize("streamed", [True, False])
def test_a_request_whose_time_runs_out_ends_alone(engine, streamed):
    one = engine(max_num_seqs=8)
    late = SamplingParams(temperature=0, max_tokens=100, timeout=1e-6)
    fine = one.stream("t1 t2", GREEDY)
    first = next(fine).token_ids
    with pytest.raises(RequestTimeoutError, match="timeout of 1e-06 s is over"):
        list(one.stream("t3", late)) if streamed else one.generate(["t3", "t4"], [late, GREEDY])
    tokens = first + [token for output in fine for token in output.token_ids]
    assert tokens == one.generate("t1 t2", GREEDY)[0].token_ids
    assert one.idle


def test_what_is_long_to_tokenize_is_done_before_a_request_comes(engine, monkeypatch):
    """So that nobody's step waits for it."""
    one = engine()
    words = [f"t{n}" for n in range(20, 60)]
    prepared = one.prepare("t1 t2 t3", SamplingParams(max_tokens=4, bad_words=words), "a")
    monkeypatch.setattr(one.tokenizer, "_tokenizer", NoEncoder(one.tokenizer._tokenizer))
    one.add(prepared)
    drain(one)
    assert prepared.num_output == 4


class NoEncoder:
    """A tokenizer that decodes alone."""

    def __init__(self, tokenizer):
        self.decode = tokenizer.decode


# -- by hand -----------------------------------------------------------------------------------


def test_stats_say_what_is_going_on(engine):
    one = engine(max_num_seqs=2)
    assert one.stats()[:3] == (0, 0, 0)
    for _ in range(3):
        one.add_request([1, 2, 3], GREEDY)
    assert one.stats()[:2] == (0, 3)
    one.step()
    assert one.stats()[:3] == (2, 1, 2)
    drain(one)
    assert one.stats()[:3] == (0, 0, 0)
    assert one.stats().blocks_total >= 16


def test_ids_in_use_and_full_queues_are_refused(engine):
    one = engine(max_queue_size=1)
    one.add_request([1], GREEDY, "mine")
    with pytest.raises(InvalidRequestError, match="'mine' is in use"):
        one.add_request([1], GREEDY, "mine")
    with pytest.raises(QueueFullError, match="max_queue_size"):
        one.add_request([1], GREEDY, "other")
    drain(one)
    assert one.add_request([1], GREEDY, "mine") == "mine"


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_aborted_request_is_gone_at_once(engine, good_draft, steps):
    one = engine(draft_model=good_draft, max_num_batched_tokens=16, max_num_seqs=4)
    one.add_request([1] * 40, SamplingParams(max_tokens=60), "a")
    kept = one.add_request([2, 3], GREEDY, "b")
    for _ in range(steps):
        one.step()
    output = one.abort("a")
    assert (output.request_id, output.finish_reason) == ("a", "abort")
    assert one.abort("a") is None
    outputs = [output for _ in range(20) if not one.idle for output in one.step()]
    assert {output.request_id for output in outputs} == {kept}
    assert one.idle
    one.check_integrity()


@pytest.mark.parametrize("steps", [0, 1, 6])  # queued, its prompt half read, decoding
def test_an_aborted_request_leaves_both_caches_at_once(engine, good_draft, steps):
    one = engine(draft_model=good_draft, max_num_batched_tokens=16, max_num_seqs=4)
    one.add_request([1] * 40, SamplingParams(max_tokens=60), "a")
    for _ in range(steps):
        one.step()
    assert (one.stats().blocks_used > 0) == (steps > 0)
    one.abort("a")
    assert one.stats().blocks_used == 0


def test_a_context_drops_what_is_running(engine):
    with engine() as one:
        one.add_request([1, 2], SamplingParams(max_tokens=None))
        one.step()
    assert one.idle
    assert one.stats().blocks_used == 0


def test_what_a_stop_cuts_off_is_in_no_cached_block(engine, target):
    """The draft is the target, so that all of a draft is accepted, and cut off in its midst."""
    one = engine(draft_model=target, num_speculative_tokens=8, block_size=4)
    greedy = {"temperature": 0, "max_tokens": 24}
    [written] = one.generate([[1, 2, 3]], SamplingParams(**greedy))
    for token in dict.fromkeys(written.token_ids):
        one.generate([[1, 2, 3]], SamplingParams(stop_token_ids=[token], **greedy))
        one.check_integrity()


def test_integrity_after_preemption_aborts_and_stops(engine, good_draft):
    one = engine(draft_model=good_draft, kv_cache_memory="300KiB", max_model_len=128)
    params = [SamplingParams(max_tokens=100, seed=index) for index in range(12)]
    for index, each in enumerate(params):
        one.add_request([7] * (index + 1), each, str(index))
    for step in range(400):
        if one.idle:
            break
        one.step()
        one.check_integrity()
        if step % 20 == 19:
            one.abort(str(step // 20))
    assert one.idle
    assert one.stats().preemptions > 0
    one.check_integrity()


@pytest.mark.parametrize(
    ("parameters", "has"),
    [
        ({}, "none"),
        ({"speculative_method": "ngram"}, "ngram, none"),
        (
            {"speculative_method": "suffix,ngram", "adaptive_speculation": True},
            "suffix, ngram, none",
        ),
    ],
)
def test_a_method_that_was_not_loaded_is_refused_with_those_that_were(engine, parameters, has):
    one = engine(**parameters)
    for name in has.split(", "):
        one.generate("t1 t2", SamplingParams(max_tokens=2, speculative_method=name))
    for name in ("eagle3", "suffix,ngram", "NONE"):
        with pytest.raises(InvalidRequestError) as caught:
            one.generate("t1 t2", SamplingParams(speculative_method=name))
        assert str(caught.value) == (
            f"The sampling parameter 'speculative_method' is {name!r}, but this model was loaded "
            f"with {has}: name one of these."
        )


def test_without_adaptation_a_request_may_still_name_none(engine, good_draft):
    one = engine(draft_model=good_draft)
    drafted = [
        one.generate("t1 t2", GREEDY.model_copy(update={"speculative_method": name}))[0].stats
        for name in ("draft_model", "none")
    ]
    assert drafted[0].drafted > 0
    assert drafted[1].drafted == 0


@pytest.mark.parametrize("method", ["none", "draft_model", "ngram,draft_model"])
def test_its_models_go_with_it(method, target):
    """At once, and not when Python looks for circles: until then a GPU would have no room."""
    draft = target if "draft_model" in method else None
    values = {"speculative_method": method, "draft_model": draft, "kv_cache_memory": "4MiB"}
    gc.collect()
    gc.disable()
    try:
        with Engine(EngineConfig(model=target, **values)) as one:
            one.generate(["t1 t2"], GREEDY)
            model = weakref.ref(one.target.model)
        del one
        assert model() is None
    finally:
        gc.enable()
