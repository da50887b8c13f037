"""The engine in a process of its own: every request is answered once, whatever dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandem import RequestOutput, SamplingParams, service
from tandem.errors import (
    NO_ROOM,
    InvalidRequestError,
    QueueFullError,
    RequestTimeoutError,
    TandemError,
)
from tandem.messages import Alive, Measured, Outputs, Refused
from tandem.metrics import (
    FAILED,
    FINISHED,
    KV_USAGE,
    RESTARTS,
    RUNNING,
    UP,
    WAITING,
    Key,
    Report,
    counted,
    merged,
)
from tandem.service import EngineService
from tests.engine.sinks import LONG, SHORT, WAIT_S, Answer, config_of, submit, until


@pytest.fixture(scope="module")
def shared(target: Path, good_draft: Path) -> Iterator[EngineService]:
    """A service for the tests that leave it whole."""
    one = EngineService(config_of(target, draft_model=good_draft))
    yield one
    one.stop()


# -- answers -----------------------------------------------------------------------------------


def test_text_and_ids_are_answered_as_by_an_engine_here(shared, engine):
    expected = engine().generate("t1 t2 t3", SHORT)[0]
    for prompt in ("t1 t2 t3", [1, 2, 3]):
        answer = submit(shared, prompt).wait()
        assert answer.text == expected.text
        assert answer.reason == "length"
        assert answer.errors == []


@pytest.mark.parametrize("asked_for", [True, False])
def test_prompts_are_logged_only_where_that_is_asked_for(shared, monkeypatch, caplog, asked_for):
    caplog.set_level("DEBUG", "tandem")
    config = shared._config.model_copy(update={"log_prompts": asked_for})
    monkeypatch.setattr(shared, "_config", config)
    for prompt in ("t1\n" + 500 * "t2 ", [7, 8]):
        submit(shared, prompt).wait()
    text = [one.getMessage() for one in caplog.records if "has the prompt" in one.getMessage()]
    assert len(text) == (2 if asked_for else 0)
    if asked_for:
        assert "has the prompt 't1\\nt2 t2 " in text[0]
        assert text[0].endswith("' and 503 more")
        assert text[1].endswith("has the prompt [7, 8]")
    else:
        assert "t1" not in caplog.text


def test_32_requests_at_once_get_32_answers_of_their_own(shared, engine):
    params = [SamplingParams(max_tokens=5 + n % 9, seed=n) for n in range(32)]
    prompts = [[n, n + 1, n + 2] for n in range(32)]
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(submit, [shared] * 32, prompts, params))
    expected = engine().generate(prompts, params)
    assert [answer.wait().text for answer in answers] == [output.text for output in expected]
    assert all(answer.calls_after_the_end == 0 for answer in answers)


@pytest.mark.parametrize(
    ("prompt", "params", "said"),
    [
        ([], SHORT, "empty"),
        ([500], SHORT, "outside the vocabulary"),
        ([1] * 256, SHORT, "256 tokens"),
        ("t1", SamplingParams(stop_token_ids=[99]), "stop_token_ids"),
        ("\ud800", SHORT, "not valid Unicode"),
    ],
)
def test_a_refused_request_gets_one_error_and_the_next_is_served(shared, prompt, params, said):
    refused, fine = submit(shared, prompt, params), submit(shared, "t1")
    assert fine.wait().reason == "length"
    (error,) = refused.wait().errors
    assert isinstance(error, InvalidRequestError)
    assert said in str(error)
    assert refused.outputs == []


@pytest.fixture
def stopped(shared, monkeypatch) -> Iterator[list[Report]]:
    """The shared engine's process takes in nothing for a while; what is counted of its requests."""
    reports: list[Report] = []
    monkeypatch.setattr(shared, "_on_report", reports.append)
    os.kill(shared.pid, signal.SIGSTOP)
    yield reports
    os.kill(shared.pid, signal.SIGCONT)


def test_requests_beyond_what_runs_and_waits_are_refused_at_once(shared, stopped):
    answers = [submit(shared, "t1", LONG) for _ in range(44)]  # 4 that run and 40 that wait
    for refuse in (shared.check_room, lambda: submit(shared, "t1", LONG)):
        with pytest.raises(QueueFullError, match=NO_ROOM):  # as the front knows it
            refuse()
    assert merged(stopped).counts[Key(FAILED, "queue_full")] == 2
    os.kill(shared.pid, signal.SIGCONT)
    assert all(answer.wait().over.is_set() for answer in answers)
    assert submit(shared, "t1", SHORT).wait().reason == "length"


def test_the_engine_refuses_what_does_not_fit_its_queue(shared, stopped, monkeypatch):
    monkeypatch.setattr(shared, "_most", 60)
    answers = [submit(shared, "t1", LONG) for _ in range(60)]
    os.kill(shared.pid, signal.SIGCONT)
    errors = [error for answer in answers for error in answer.wait().errors]
    assert all(isinstance(error, QueueFullError) for error in errors)
    assert 1 <= len(errors) <= 60 - 40  # at most, if all of them arrive before any is begun
    counts = merged(stopped).counts
    assert counts[Key(FAILED, "queue_full")] == len(errors)
    assert counts[Key(FINISHED, "length")] == 60 - len(errors)


@pytest.mark.parametrize("params", [LONG, SamplingParams(max_tokens=1)])
def test_a_sink_that_fails_gets_an_end_and_harms_no_one_else(shared, params, monkeypatch):
    class Failing(Answer):
        def on_output(self, output: RequestOutput) -> None:
            super().on_output(output)
            raise OSError("the client is gone")

    reports: list[Report] = []
    monkeypatch.setattr(shared, "_on_report", reports.append)
    failing = Failing()
    shared.submit("t1 t2", params, failing)
    other = submit(shared, "t1 t2", SamplingParams(max_tokens=50))
    assert other.wait().reason == "length"
    assert "could not be sent" in str(failing.wait().errors[0])
    assert len(failing.outputs) == 1
    assert submit(shared, "t1").wait().reason == "length"
    assert failing.calls_after_the_end == (1 if params.max_tokens == 1 else 0)
    counts = merged(reports).counts
    assert counts[Key(FINISHED, "length")] == 2
    assert counts[Key(FAILED, "internal")] == 1  # our error, not its end
    assert Key(FINISHED, "abort") not in counts


def test_what_was_given_up_is_not_counted_again(shared, monkeypatch):
    """Its time was over in the engine before that learnt of it."""
    reports: list[Report] = []
    monkeypatch.setattr(shared, "_on_report", reports.append)
    shared._refuse(Refused("given up", "RequestTimeoutError", "It took too long."))
    assert not reports


def test_a_bug_that_a_request_meets_is_counted_as_ours(shared, monkeypatch):
    reports: list[Report] = []
    monkeypatch.setattr(shared, "_on_report", reports.append)
    shared._sinks["a"] = answer = Answer()
    shared._refuse(Refused("a", "TandemError", "The request could not be read: see the log."))
    assert [type(error) for error in answer.errors] == [TandemError]
    assert reports == [counted(FAILED, 1, "internal")]


def test_an_engine_is_not_idle_before_its_answers_are_counted(shared, monkeypatch):
    reports: list[Report] = []
    monkeypatch.setattr(shared, "_on_report", reports.append)
    shared._sinks["a"] = Answer()
    idle = Report({}, {Key(RUNNING): 0.0}, {})
    shared._dispatch([Outputs([RequestOutput("a", finish_reason="stop")]), Measured(idle)])
    told = [one for one in reports if set(one.gauges) != {Key(WAITING)}]
    assert told == [counted(FINISHED, 1, "stop"), idle]


def test_those_wait_whose_prompts_are_not_tokenized_yet(shared, monkeypatch):
    reports: list[Report] = []
    monkeypatch.setattr(shared, "_on_report", reports.append)
    busy = Report({}, {Key(RUNNING): 4.0, Key(WAITING): 3.0}, {})
    for message in (Alive(2), Measured(busy), Alive(1), Measured(Report({}, {}, {})), Alive(0)):
        shared._dispatch([message])
    told = [one.gauges[Key(WAITING)] for one in reports if set(one.gauges) == {Key(WAITING)}]
    assert [one for one in told if one] == [2, 5, 4, 1]


def test_prompts_that_are_being_tokenized_are_seen_to_wait(shared, monkeypatch):
    """Also where the engine has nothing to do, and so nothing to tell."""
    reports: list[Report] = []
    monkeypatch.setattr(shared, "_on_report", reports.append)
    answers = [submit(shared, "t1 " * 300_000) for _ in range(20)]
    until(lambda: any(one.gauges.get(Key(WAITING)) for one in reports))
    for answer in answers:
        shared.abort(answer.id)
        answer.wait()
    until(lambda: reports[-1].gauges.get(Key(WAITING)) == 0)


def test_an_engine_that_has_ended_uses_no_cache(shared, monkeypatch):
    reports: list[Report] = []
    monkeypatch.setattr(shared, "_on_report", reports.append)
    shared._stand(False)
    used = [merged(reports).gauges.get(Key(KV_USAGE, runner)) for runner in ("target", "draft")]
    assert used == [0, 0]


def test_sending_does_not_wait_for_long_prompts_to_be_read(shared):
    begun = time.monotonic()
    answers = [submit(shared, "t1 " * 300_000) for _ in range(5)]
    sent = time.monotonic()
    assert all("tokens" in str(answer.wait().errors[0]) for answer in answers)
    assert sent - begun < time.monotonic() - sent


def test_every_line_of_the_log_about_a_request_names_it(target, caplog, monkeypatch):
    monkeypatch.setattr(service, "FIRST_PAUSE_S", WAIT_S)
    caplog.set_level("DEBUG", "tandem")
    one = EngineService(config_of(target))
    prompts = {"fine": "t1 t2 t3", "refused": "t4 " * 300, "lost": "t5 t6"}
    answers = {name: Answer() for name in prompts}
    ids = {}
    for name, prompt in prompts.items():
        params = LONG if name == "lost" else SHORT
        ids[name] = one.submit(prompt, params, answers[name], name)
        ends = answers[name].begun if name == "lost" else answers[name].over
        assert ends.wait(WAIT_S)
    os.kill(one.pid, signal.SIGKILL)
    answers["lost"].wait()
    one.stop()
    lines = [record.getMessage() for record in caplog.records]
    for name, end in (("fine", "has ended: length."), ("refused", "has ended: The prompt has")):
        first, second = [line for line in lines if ids[name] in line]
        assert first == f"{ids[name]} has arrived."
        assert second.startswith(f"{ids[name]} {end}")
    assert any(line.startswith(f"{ids['lost']} is lost: ") for line in lines)
    about_the_engine = [line for line in lines if not any(i in line for i in ids.values())]
    assert all("engine" in line for line in about_the_engine)
    assert not any(prompt[:5] in line for line in lines for prompt in prompts.values())


# -- deadlines ---------------------------------------------------------------------------------


def test_a_request_ends_with_its_timeout(shared):
    timed = submit(shared, "t1", LONG.model_copy(update={"timeout": 0.005})).wait()
    (error,) = timed.errors
    assert isinstance(error, RequestTimeoutError)
    assert "timeout of 0.005 s" in str(error)
    assert timed.reason is None
    assert timed.calls_after_the_end == 0
    assert submit(shared, "t1", SHORT.model_copy(update={"timeout": 50})).wait().reason == "length"


def test_a_request_does_not_wait_longer_than_the_queue_allows(target):
    one = EngineService(config_of(target, max_num_seqs=1, queue_timeout=0.005))
    try:
        for _ in range(20):  # on a busy machine the first may wait for so long, too
            first, second = submit(one, "t1", LONG), submit(one, "t2", LONG)
            (error,) = second.wait().errors
            if not first.wait().errors:
                break
        assert isinstance(error, RequestTimeoutError)
        assert "waited for 0.005 s" in str(error)
        assert first.reason == "length"  # once begun, it goes on
    finally:
        one.stop()


def test_what_a_service_counts(target):
    reports: list[Report] = []
    one = EngineService(config_of(target), on_report=reports.append)
    try:
        submit(one, "t1").wait()
        submit(one, [500]).wait()
        submit(one, "t1", LONG.model_copy(update={"timeout": 0.005})).wait()
        answer = submit(one, "t1", LONG)
        assert answer.begun.wait(WAIT_S)
        one.abort(answer.id)
        answer.wait()  # what has ended is counted, though the engine has no time to tell
        os.kill(one.pid, signal.SIGKILL)
        until(lambda: Key(RESTARTS) in merged(reports).counts)
    finally:
        one.stop()
    both = merged(reports)
    assert both.counts[Key(FINISHED, "length")] == both.counts[Key(FINISHED, "abort")] == 1
    assert both.counts[Key(FAILED, "invalid")] == both.counts[Key(FAILED, "timeout")] == 1
    ups = [report.gauges[Key(UP)] for report in reports if Key(UP) in report.gauges]
    assert ups[:3] == [1, 0, 1]
    assert ups[-1] == 0


# -- aborts ------------------------------------------------------------------------------------


def test_a_running_request_is_aborted(shared):
    answer = submit(shared, "t1", LONG)
    assert answer.begun.wait(WAIT_S)
    shared.abort(answer.id)
    assert answer.wait().reason == "abort"


def test_a_queued_request_is_aborted(shared):
    running = [submit(shared, "t1", LONG) for _ in range(4)]
    queued = submit(shared, "t2", LONG)
    shared.abort(queued.id)
    assert queued.wait().reason == "abort"
    assert queued.outputs[-1].token_ids == []
    for answer in running:
        shared.abort(answer.id)
    assert all(answer.wait().reason in ("abort", "length") for answer in running)


def test_a_request_behind_a_long_prompt_is_aborted_at_once(shared):
    """Neither is tokenized yet."""
    long = submit(shared, "t1 " * 3_000_000)
    behind = submit(shared, "t2", LONG)
    shared.abort(behind.id)
    assert behind.wait().reason == "abort"
    assert not long.over.is_set()
    assert len(long.wait().errors) == 1
    assert submit(shared, "t1").wait().reason == "length"
    assert behind.calls_after_the_end == 0


def test_a_request_behind_a_long_prompt_ends_with_its_timeout(shared):
    """Neither is tokenized yet."""
    long = submit(shared, "t1 " * 3_000_000)
    behind = submit(shared, "t2", LONG.model_copy(update={"timeout": 0.01}))
    (error,) = behind.wait().errors
    assert isinstance(error, RequestTimeoutError)
    assert not long.over.is_set()
    assert len(long.wait().errors) == 1
    assert behind.calls_after_the_end == 0


def test_aborting_what_is_over_or_unknown_changes_nothing(shared):
    answer = submit(shared, "t1").wait()
    shared.abort(answer.id)
    shared.abort("never seen")
    assert submit(shared, "t1").wait().reason == "length"
    assert answer.calls_after_the_end == 0
    assert len(answer.errors) == 0


def test_aborts_that_cross_the_end_give_one_end(shared):
    answers = [submit(shared, "t1", SamplingParams(max_tokens=n % 5 + 1)) for n in range(30)]
    for answer in answers:
        shared.abort(answer.id)
    assert {answer.wait().reason for answer in answers} <= {"abort", "length"}
    assert submit(shared, "t1").wait().reason == "length"
    assert all(answer.calls_after_the_end == 0 for answer in answers)
