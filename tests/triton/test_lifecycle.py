"""Loading, unloading and reloading by a client, a warm-up, and a step of an ensemble."""

import os
import re
import subprocess
import threading
import time

import psutil
import pytest
from tritonclient.utils import InferenceServerException

from tandem_client import GrpcClient, TandemError, Unavailable
from tests.triton.conftest import PROMPT
from tests.triton.protocol import (
    WAIT,
    Refused,
    joined,
    mean_draft,
    responses,
    sampling,
    stream,
    text_of,
)
from tests.triton.repository import EAGLE3, MODEL_REPOSITORY

pytestmark = pytest.mark.waiting


@pytest.mark.parametrize("streamed", [True, False])
def test_a_step_of_an_ensemble(small, greedy_text, streamed):
    inputs = {"PROMPT": PROMPT, "PARAMETERS": sampling(max_tokens=64), "STREAM": streamed}
    answer = list(responses(small.grpc, inputs, model="pipeline"))
    text = b"".join(joined(answer, "TEXT")).decode()
    assert text == (greedy_text if streamed else PROMPT + greedy_text)
    assert [response.final for response in answer].count(True) == 1


def test_an_error_in_an_ensemble(small):
    inputs = {"PROMPT": PROMPT, "PARAMETERS": '{"max_tokens": 0}', "STREAM": True}
    with pytest.raises(Refused, match="max_tokens"):
        list(responses(small.grpc, inputs, model="pipeline"))


def test_the_warm_up_ran_before_the_model_was_ready(control, small_server):
    log = small_server.log_path.read_text(errors="replace")
    assert "failed to run warmup" not in log
    before, loaded, _ = log.partition("successfully loaded 'tandem'")
    assert loaded
    assert len(re.findall(r"tandem: \S+ has ended: (?:length|stop)", before)) == 1
    assert control.is_model_ready("tandem")


PROBE = MODEL_REPOSITORY.parent / "docker" / "probe.sh"


@pytest.mark.timeout(900)
def test_a_reload_swaps_draft_method_and_length_under_running_requests(control, small, changed):
    """Two clients that send one request after the other: whenever the new model takes over, one
    request runs and one waits. Each gets its whole text, from the old model or from the new one.
    (The queue has room: a client's next request may come before the other's was taken up.)"""
    roomy = {"max_queue_size": "8"}
    control.load_model("tandem", config=changed(**roomy))
    expected = text_of(stream(small.grpc, PROMPT, max_tokens=100))
    over, answers, failed = threading.Event(), [], []

    def ask_on():
        while not over.is_set():
            try:
                answers.append(stream(small.grpc, PROMPT, max_tokens=100))
            except Refused as error:
                failed.append(error)

    clients = [threading.Thread(target=ask_on) for _ in range(2)]
    for client in clients:
        client.start()
    wait_until(lambda: answers)
    control.load_model("tandem", config=changed(**EAGLE3, **roomy))
    over.set()
    for client in clients:
        client.join(WAIT)
    answers.append(stream(small.grpc, PROMPT, max_tokens=100, speculative_method="eagle3"))
    assert not failed
    assert [text_of(answer) for answer in answers] == [expected] * len(answers)
    assert mean_draft(answers[0]) > 1
    assert mean_draft(answers[-1]) == 1
    with pytest.raises(Refused, match="was loaded with eagle3, none"):
        stream(small.grpc, PROMPT, speculative_method="draft_model")
    control.load_model("tandem", config=changed())
    assert mean_draft(stream(small.grpc, PROMPT, speculative_method="draft_model")) > 1


def wait_until(condition):
    """Waits for what threads are about to do."""
    limit = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_a_bad_configuration_is_named_and_the_model_goes_on(control, small, changed):
    with pytest.raises(InferenceServerException, match="num_speculative_tokens"):
        control.load_model("tandem", config=changed(num_speculative_tokens="many"))
    assert text_of(stream(small.grpc, PROMPT, max_tokens=2))


def test_a_crash_of_the_engine_is_said_and_repaired(small, small_server, greedy_text):
    params = {"max_tokens": 64, "temperature": 0.0, "ignore_eos": True}
    with GrpcClient(small.grpc) as client:
        wait_until(lambda: found(small, "ready", "tandem") and found(small, "ready"))
        stream_of = client.stream(PROMPT, params, max_tokens=400)
        with pytest.raises(Unavailable, match="send the request again"), stream_of as chunks:
            next(chunks)
            [engine] = engines(small_server)
            engine.kill()
            list(chunks)
        wait_until(lambda: not (found(small, "ready", "tandem") or found(small, "ready")))
        assert found(small, "live")
        limit = time.monotonic() + WAIT
        while True:
            try:
                assert client.generate(PROMPT, params).text == greedy_text
                break
            except Unavailable as error:
                assert "again" in str(error)
                assert time.monotonic() < limit
                time.sleep(0.1)


def found(urls, *asked):
    """Whether a probe would be content."""
    addresses = {"HTTP_PORT": urls.http, "GRPC_PORT": urls.grpc, "METRICS_PORT": urls.metrics}
    ports = {name: port_of(address) for name, address in addresses.items()}
    run = subprocess.run([PROBE, *asked], env=os.environ | ports, check=False)
    return not run.returncode


def port_of(address):
    return address.rpartition(":")[2]


def test_the_loss_of_the_models_process_is_seen_and_mended_by_unload_and_load(
    control, small, small_server
):
    wait_until(lambda: found(small, "live") and found(small, "ready"))  # the engine was killed
    [engine] = engines(small_server)
    psutil.Process(engine.ppid()).kill()
    wait_until(lambda: not found(small, "live"))
    assert not found(small, "ready")
    assert control.is_model_ready("tandem")  # which is why somebody must look
    control.unload_model("tandem")
    wait_until(lambda: not control.is_model_ready("tandem"))
    control.load_model("tandem")
    wait_until(lambda: found(small, "live") and found(small, "ready", "tandem"))
    assert text_of(stream(small.grpc, PROMPT, max_tokens=2))


def engines(server):
    """The engine processes of a server."""
    family = psutil.Process(server.pid).children(recursive=True)
    return [process for process in family if "tandem.engine_main" in process.cmdline()]


def unloaded_while_running(control, small, max_tokens):
    """How a request ended while whose answer came the model was unloaded."""
    first, ended = threading.Event(), []

    def run():
        params = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}
        with GrpcClient(small.grpc) as client:
            try:
                with client.stream(PROMPT, params, num_draft_tokens=0) as chunks:
                    next(chunks)
                    first.set()
                    ended.append(list(chunks)[-1])
            except Unavailable as error:
                ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert first.wait(30)
    control.unload_model("tandem")
    thread.join(WAIT)
    [end] = ended
    return end


def test_an_unload_lets_running_requests_end(control, small, small_server, greedy_text):
    """A load behind it begins anew."""
    before = engines(small_server)
    assert unloaded_while_running(control, small, 200).finish_reason == "length"
    gone, alive = psutil.wait_procs(before, timeout=30)
    assert gone
    assert not alive
    with GrpcClient(small.grpc) as client:
        assert not client.is_ready()
        with pytest.raises(TandemError, match="tandem"):
            client.generate(PROMPT)
        control.load_model("tandem")
        assert client.is_ready()
        assert client.generate(PROMPT, max_tokens=64, temperature=0.0).text == greedy_text


def test_an_unload_does_not_wait_beyond_its_time(control, small, small_server, changed):
    control.load_model("tandem", config=changed(drain_timeout="0"))
    before = engines(small_server)
    end = unloaded_while_running(control, small, 1900)
    assert isinstance(end, Unavailable)
    assert "drain_timeout" in str(end)
    assert not psutil.wait_procs(before, timeout=30)[1]
