"""The model's answers where Triton's front ends hide them: error codes, finals, merging.

A fake of Triton's module stands in; tests/triton speaks to the real server.
"""

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest

from tandem.errors import ConfigError, EngineDeadError, QueueFullError
from tandem.metrics import FAILED, HEARTBEAT, INTERNAL, UP, counted, standing
from tandem.request import RequestOutput, SpeculationStats
from tests.engine import fake_pb_utils
from tests.engine.fake_pb_utils import MetricFamily, Request, TritonError
from tests.engine.sinks import until

fake_pb_utils.install()

from tandem import triton_metrics, triton_model  # noqa: E402
from tandem.triton_model import TritonPythonModel  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def unguarded(monkeypatch, tmp_path):
    """The tests' process is no stub of a Triton, and is not to be ended like one."""
    guardian = SimpleNamespace(family=tmp_path)
    monkeypatch.setattr(triton_model, "Guardian", lambda: guardian)


class FakeService:
    """Keeps what was submitted; the test answers."""

    def __init__(self):
        self.sinks, self.asked, self.aborted = {}, [], []
        self.refusal, self.names = None, []
        self.full = ""

    def check_room(self):
        if self.full:
            raise QueueFullError(self.full)

    def submit(self, prompt, params, sink, name):
        if self.refusal:
            raise self.refusal
        request_id = f"request-{len(self.sinks)}"
        self.sinks[request_id] = sink
        self.asked.append((prompt, params))
        self.names.append(name)
        return request_id

    def abort(self, request_id):
        self.aborted.append(request_id)


def test_a_heart_beats_while_weights_load(monkeypatch, tmp_path):
    """So that who probes can tell a model that loads from one that has lost its process."""
    shown = {}

    def load(config, on_report, family):
        until(lambda: MetricFamily.made[HEARTBEAT].metrics[0].value > 0)
        shown.update(up=MetricFamily.made[UP].metrics[0].value)
        raise ConfigError("It cannot be loaded.")

    monkeypatch.setattr(triton_model, "EngineService", load)
    loading = TritonPythonModel()
    with pytest.raises(ConfigError):
        loading.initialize(arguments(tmp_path))
    assert shown == {"up": 0}
    assert not loading.board._families  # nor is it shown any longer


def test_a_model_that_is_ready_is_said_to_be_up(monkeypatch, tmp_path):
    class Ready(FakeService):
        def __init__(self, config, on_report, family):
            super().__init__()
            on_report(standing(True))

        def stop(self):
            """Nothing runs."""

    monkeypatch.setattr(triton_model, "EngineService", Ready)
    monkeypatch.setattr(triton_metrics, "PAUSE_S", 60.0)
    one = TritonPythonModel()
    one.initialize(arguments(tmp_path))
    assert MetricFamily.made[UP].metrics[0].value == 1
    one.finalize()


def test_an_engine_ends_whose_model_triton_keeps(model, monkeypatch):
    """Nothing runs in it, and yet Triton does not finalize it."""
    monkeypatch.setattr(triton_model, "DRAIN_POLL_S", 0.001)
    model.stopping, ends, looks = threading.Event(), [], []
    model.service.stop = ends.append
    over = lambda: looks.append(1) or len(looks) > 2  # noqa: E731
    model.drain = SimpleNamespace(over=over, reason="It is over.")
    model._watch_unload()
    assert ends == ["It is over."]


def arguments(folder):
    """What Triton would say of a model."""
    config = {"parameters": {"model": {"string_value": "target"}}}
    args = {"model_name": "tandem", "model_version": "1", "model_repository": str(folder)}
    return args | {"model_config": json.dumps(config)}


@pytest.fixture
def model():
    model = TritonPythonModel()
    model.service, model.active, model.reports = FakeService(), {}, SimpleQueue()
    model.max_prompt_bytes, model.early = 1000, {}
    return model


def ask(model, **inputs):
    request = Request(inputs)
    model.execute([request])
    return request.sender


def test_the_models_process_does_without_torch():
    """Which is the engine's, in a process of its own."""
    lines = "import sys", "from tests.engine import fake_pb_utils", "fake_pb_utils.install()"
    lines += "import tandem.triton_model", "print({'torch', 'vllm'} & {*sys.modules})"
    command = [sys.executable, "-c", "\n".join(lines)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stdout == "set()\n", run.stderr


def test_tritons_own_timeout_counts(model):
    model.execute([Request({"text_input": "a"}, own_timeout=2_500_000)])
    ours = {"text_input": "a", "sampling_parameters": '{"timeout": 1}'}
    model.execute([Request(ours, own_timeout=2_500_000)])
    assert [params.timeout for _, params in model.service.asked] == [2.5, 1]


def test_a_request_keeps_the_name_its_client_gave_it_as_far_as_a_line_can_hold(model):
    ids = ["", "order 7", "caf\u00e9", "a\nb\x1b[2J\u2028c", "x" * 100]
    # Triton's generate repeats the id among the request's parameters.
    model.execute([Request({"text_input": "a"}, f'{{"id": "{len(i)}"}}', own_id=i) for i in ids])
    assert model.service.names == ["", "order 7", "caf\u00e9", "a?b?[2J?c", "x" * 64]


def named(cancel_id, **inputs):
    return Request({"text_input": "a", **inputs}, json.dumps({"cancel_id": cancel_id}))


def take_back(model, cancel_id):
    request = Request({}, json.dumps({"cancel": cancel_id}))
    model.execute([request])
    return request.sender


def test_a_request_is_taken_back_by_its_name_even_where_the_queue_is_full(model):
    other = named("b", sampling_parameters='{"max_tokens": 3}')
    first, unnamed = named("a"), Request({"text_input": "a"})
    model.execute([first, other, unnamed])
    model.service.full = "No room."
    answer = take_back(model, "a")
    assert (answer.finals, answer.sent[0].text()) == (1, "")
    assert model.service.aborted == ["request-0"]
    model.service.sinks["request-0"].on_output(RequestOutput("request-0", finish_reason="abort"))
    assert first.sender.sent[0].error.code == TritonError.CANCELLED
    # Who asks may be late, and a name that is none is nobody's.
    for cancel_id in ("a", "c", ""):
        assert take_back(model, cancel_id).sent[0].error is None
    assert model.service.aborted == ["request-0"]


def test_a_request_that_comes_behind_the_one_that_takes_it_back_is_aborted(model, monkeypatch):
    """Of a long one Triton reads the JSON longer."""
    take_back(model, "a")
    model.execute([named("b"), named("a"), named("")])
    assert model.service.aborted == ["request-1"]
    take_back(model, "b")  # which runs
    model.execute([named("b")])
    assert model.service.aborted == ["request-1", "request-0"]
    monkeypatch.setattr(triton_model, "EARLY_S", 0.0)
    model.execute([named("a")])
    assert len(model.service.aborted) == 2


def test_names_of_requests_that_never_come_are_not_kept_for_ever(model, monkeypatch):
    monkeypatch.setattr(triton_model, "MOST_EARLY", 3)
    for name in "abcde":
        take_back(model, name)
    assert list(model.early) == ["c", "d", "e"]


def test_a_name_to_be_taken_back_by_is_the_requests_in_the_log_and_no_sampling_parameter(model):
    model.execute([named("a\nb"), named("c")])
    model.execute([Request({"text_input": "a"}, '{"cancel_id": "d"}', own_id="order 7")])
    assert model.service.names == ["a?b", "c", "order 7"]
    take_back(model, "a\nb")
    assert model.service.aborted == ["request-0"]


@pytest.mark.parametrize(
    ("inputs", "more", "named"),
    [({"text_input": "a"}, {}, "text_input"), ({}, {"seed": 1}, "seed")],
)
def test_who_takes_back_asks_for_nothing_else(model, inputs, more, named):
    request = Request(inputs, json.dumps({"cancel": "a", "id": "order 7", **more}))
    model.execute([request])
    (response,) = request.sender.sent
    assert response.error.code == TritonError.INVALID_ARG
    assert str(response.error).endswith(f"send it without '{named}'.")


@pytest.mark.parametrize("key", ["cancel", "cancel_id"])
@pytest.mark.parametrize("length", [128, 129])
def test_a_name_has_a_longest_length(model, key, length):
    inputs = {"text_input": "a"} if key == "cancel_id" else {}
    request = Request(inputs, json.dumps({key: "a" * length}))
    model.execute([request])
    said = [str(one.error) for one in request.sender.sent if one.error]
    assert [f"'{key}' is of 129 characters: send 128 at most" in one for one in said] == (
        [True] if length == 129 else []
    )


def test_an_id_that_the_front_gave_names_nothing(model):
    given = Request({"text_input": "a"}, '{"cancel_id": "d"}', own_id="tandem-front-1f")
    model.execute([given])
    assert model.service.names == ["d"]


def test_a_name_may_be_null(model):
    model.execute([named(None)])
    take_back(model, None)
    assert model.service.names == [""] and not model.service.aborted


def test_the_word_alone_takes_nothing_back(model):
    model.execute([named("a"), Request({"text_input": "a"}, '{"stop": ["cancel", "a"]}')])
    assert len(model.service.asked) == 2 and not model.service.aborted


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("text_input", lambda size: {"text_input": "a" * (size - 2) + "\u00e9"}),
        ("input_ids", lambda size: {"input_ids": np.zeros(size // 4 + size % 4, np.int32)}),
        (
            "sampling_parameters",
            lambda size: {"text_input": "a", "sampling_parameters": "{}" + " " * (size - 2)},
        ),
    ],
)
def test_what_is_too_large_is_refused_before_it_is_read(model, name, make, more):
    sender = ask(model, **make(1000 + more))
    if not more:
        assert len(model.service.asked) == 1
        return
    (response,) = sender.sent
    assert response.error.code == TritonError.INVALID_ARG
    assert re.fullmatch(
        f"The input '{name}' has 100[14] bytes, but max_prompt_bytes is 1000: send fewer.",
        str(response.error),
    )


def test_the_requests_own_parameters_may_not_be_too_large_either(model):
    request = Request({"text_input": "a"}, json.dumps({"stop": "a" * 1000}))
    model.execute([request])
    assert "JSON of the request's parameters has" in str(request.sender.sent[0].error)


@pytest.mark.parametrize("part", ["own_id", "own_parameters"])
def test_what_is_not_utf8_is_refused_in_a_sentence(part, model, caplog):
    request = Request({"text_input": "a"}, **{part: b'{"\xff": 1}'})
    model.execute([request])
    (response,) = request.sender.sent
    assert response.error.code == TritonError.INVALID_ARG
    assert "is not UTF-8 (byte 2)" in str(response.error)
    assert not caplog.records


def test_what_is_refused_is_logged_by_name_and_without_the_prompt(model, caplog):
    caplog.set_level("DEBUG", "tandem")
    bad = {"text_input": "secret", "sampling_parameters": '{"max_tokens": 0}'}
    model.execute([Request(bad, own_id="order\n7"), Request(bad)])
    model.execute([Request({"text_input": "secret"}, "not JSON", own_id="order 8")])
    first, second, third = [record.getMessage() for record in caplog.records]
    assert first.startswith("order?7 is refused: The sampling parameter 'max_tokens'")
    assert second.startswith("A request without an id is refused: The sampling")
    assert third == "order 8 could not be read."
    assert "secret" not in caplog.text


def test_the_id_is_told_to_who_asks(model):
    sender = ask(model, text_input="a", return_request_id=True)
    output = RequestOutput("request-0", text="x", token_ids=[1], finish_reason="stop")
    model.service.sinks["request-0"].on_output(output)
    assert sender.sent[0].values("request_id") == [b"request-0"]


BAD = {
    "no prompt": {},
    "both prompts": {"text_input": "a", "input_ids": [1]},
    "empty": {"text_input": ""},
    "not UTF-8": {"text_input": b"\xff"},
    "image": {"text_input": "a", "image": "x"},
    "not JSON": {"text_input": "a", "sampling_parameters": "{"},
    "not an object": {"text_input": "a", "sampling_parameters": "[1]"},
    "unknown key": {"text_input": "a", "sampling_parameters": '{"maximum": 1}'},
    "bad value": {"text_input": "a", "sampling_parameters": '{"max_tokens": 0}'},
    "stream with the prompt": {"text_input": "a", "stream": True, "exclude_input_in_output": False},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_invalid_argument_once(name, model):
    sender = ask(model, **BAD[name])
    assert [response.error.code for response in sender.sent] == [TritonError.INVALID_ARG]
    assert sender.finals == 1
    assert not model.service.sinks


@pytest.mark.parametrize("error", [QueueFullError("full"), EngineDeadError("dead")])
def test_no_place_is_unavailable(error, model):
    sender = ask(model, text_input="a")
    model.service.sinks["request-0"].on_error(error)
    assert [response.error.code for response in sender.sent] == [TritonError.UNAVAILABLE]
    assert sender.finals == 1 and not model.active


def test_where_there_is_no_room_a_request_is_refused_unread(model):
    model.service.full = "many are here"
    request = Request({})  # it has no prompt
    model.execute([request])
    (response,) = request.sender.sent
    assert response.error.code == TritonError.UNAVAILABLE
    assert "many are here" in str(response.error)
    assert request.sender.finals == 1 and not model.service.asked


def test_a_dead_engine_refuses_at_once(model):
    model.service.refusal = EngineDeadError("restarting: try again")
    sender = ask(model, text_input="a")
    assert sender.sent[0].error.code == TritonError.UNAVAILABLE
    assert sender.finals == 1 and not model.active


def test_cancelling_aborts_once_and_answers_cancelled(model):
    sender = ask(model, text_input="a", stream=True)
    stream = model.active["request-0"]
    assert not stream.cancelled()
    sender.cancelled = True
    assert stream.cancelled() and not stream.cancelled()
    stream.on_output(RequestOutput("request-0", finish_reason="abort"))
    assert sender.sent[0].error.code == TritonError.CANCELLED
    assert sender.finals == 1 and not model.active
    assert not stream.cancelled()


def test_streaming_sends_each_run_and_holds_back_what_shows_nothing(model):
    sender = ask(model, text_input="a", stream=True, return_num_output_tokens=True)
    sink = model.service.sinks["request-0"]
    sink.on_output(RequestOutput("request-0", text="x", token_ids=[1, 2]))
    sink.on_output(RequestOutput("request-0", text="", token_ids=[3]))
    sink.on_output(RequestOutput("request-0", text="y", token_ids=[4], finish_reason="stop"))
    assert [response.text() for response in sender.sent] == ["x", "y"]
    assert [response.values("num_output_tokens") for response in sender.sent] == [[2], [2]]
    assert sender.finals == 1


def test_without_streaming_one_answer_with_the_prompt_before_it(model):
    sender = ask(model, text_input="a", return_speculation_stats=True, return_finish_reason=True)
    sink = model.service.sinks["request-0"]
    sink.on_output(RequestOutput("request-0", text="x", token_ids=[1]))
    stats = SpeculationStats(drafted=8, accepted=6, rounds=2)
    sink.on_output(
        RequestOutput("request-0", text="y", token_ids=[2], finish_reason="length", stats=stats)
    )
    (response,) = sender.sent
    assert response.text() == "axy"
    assert response.values("finish_reason") == [b"length"]
    assert response.values("acceptance_rate") == [0.75]
    assert response.values("num_rounds") == [2]


def test_no_text_holds_a_zero_byte(model):
    sender = ask(model, text_input="a", stream=True)
    output = RequestOutput("request-0", text="x\0y", token_ids=[1], finish_reason="stop")
    model.service.sinks["request-0"].on_output(output)
    assert sender.sent[0].text() == "x\ufffdy"


OPENAI = {
    "chat": {
        "frequency_penalty": 0.0,
        "ignore_eos": False,
        "logprobs": False,
        "max_tokens": 16,
        "n": 1,
        "presence_penalty": 0.0,
        "temperature": 0.7,
        "top_p": 1.0,
    },
    "completion": {
        "best_of": 1,
        "frequency_penalty": 0.0,
        "ignore_eos": False,
        "max_tokens": 16,
        "n": 1,
        "presence_penalty": 0.0,
        "seed": 3,
        "stop": ["\n\n"],
        "temperature": 1.0,
        "top_p": 1.0,
    },
}
"""What Triton's frontend for OpenAI's clients makes of a request that says little: all that one
version or another sends."""


@pytest.mark.parametrize("kind", OPENAI)
@pytest.mark.parametrize("stream", [False, True])
def test_what_tritons_openai_frontend_asks_is_answered(kind, stream, model):
    asked = {
        "text_input": "a",
        "stream": stream,
        "exclude_input_in_output": True,
        "sampling_parameters": json.dumps(OPENAI[kind]),
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    }
    sender = ask(model, **asked)
    sink = model.service.sinks["request-0"]
    for text, reason in (("b\u20ac", None), ("c", "length")):
        sink.on_output(
            RequestOutput("request-0", text, [1, 2], finish_reason=reason, num_prompt_tokens=4)
        )
    assert sender.finals == 1
    assert [one.text() for one in sender.sent] == (["b\u20ac", "c"] if stream else ["b\u20acc"])
    for response in sender.sent:
        assert response.values("num_input_tokens") == [4]
        assert response.values("num_output_tokens") == ([2] if stream else [4])


@pytest.mark.parametrize("alive", [True, False])
def test_the_model_is_ready_as_its_engine_is(alive, model):
    model.service.alive = alive
    assert model.is_ready() is alive


def test_a_surprise_ends_its_own_request_alone(model, monkeypatch):
    reports = SimpleQueue()
    monkeypatch.setattr(model, "reports", reports)
    odd, fine = Request({"text_input": "a"}, "not JSON"), Request({"text_input": "b"})
    model.execute([odd, fine])
    assert [response.error.code for response in odd.sender.sent] == [TritonError.INTERNAL]
    assert odd.sender.finals == 1
    assert reports.get_nowait() == counted(FAILED, 1, INTERNAL)
    assert [prompt for prompt, _ in model.service.asked] == ["b"]


def test_optional_outputs_only_when_asked(model):
    sender = ask(model, text_input="a")
    output = RequestOutput("request-0", text="x", token_ids=[1], finish_reason="stop")
    model.service.sinks["request-0"].on_output(output)
    assert sender.sent[0].names() == {"text_output"}


def test_own_parameters_serve_where_the_tensor_is_absent(model):
    request = Request({"text_input": "a"}, '{"max_tokens": 3, "triton_internal": true}')
    model.execute([request])
    assert model.service.asked[0][1].max_tokens == 3
