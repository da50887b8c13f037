"""What stands before Triton's gRPC, before a real one."""

import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import InferenceServerClient, service_pb2
from tritonclient.utils import InferenceServerException

from tandem.front.grpc_front import SERVICE, STREAM
from tandem.metrics import FINISHED
from tandem.serving import ServerOptions, TritonServer
from tandem.serving.front_process import front_before
from tandem.serving.overrides import entry
from tandem.serving.ports import FREE, Ports, choose_ports
from tandem_client import GrpcClient, errors
from tests.serving.models import CONFIG, ECHO, write_model
from tests.triton.raw import RawTensor, behind, message, over_grpc, strings
from tests.triton.scrape import settled, waited

TANDEM = Path(sys.executable).with_name("tandem")
PROMPT = "def main(argv):\n"
GREEDY = {"temperature": 0.0, "ignore_eos": True}
ENDS_THE_MODEL = message([RawTensor("input_ids", "INT32", [1 << 62], b"")], {})


@contextmanager
def started(triton, *options, shell=()):
    """The command, as an operator starts it, and where it is to be found. shell: what it is
    started by."""
    port = choose_ports("127.0.0.1", FREE).grpc
    address = f"127.0.0.1:{port}"
    command = [TANDEM, "front", "--triton-grpc", triton, "--grpc-port", str(port), *options]
    command = [*shell, *command]
    with subprocess.Popen(command) as process:
        try:
            # It looks again soon, however long the start takes beside other tests.
            often = [("grpc.max_reconnect_backoff_ms", 500)]
            with grpc.insecure_channel(address, often) as channel:
                grpc.channel_ready_future(channel).result(timeout=60)
            yield process, address
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def front(triton_server):
    """host:port of one."""
    with started(triton_server.endpoints.grpc) as (_, address):
        yield address


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_asked_to(signum):
    """Also where it was started as a shell starts what is in its background, SIGINT ignored."""
    in_background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    front = started("127.0.0.1:1", shell=in_background)
    with front as (process, address), grpc.insecure_channel(address) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary(f"{SERVICE}ServerReady")(b"", timeout=20)
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE  # there is no Triton
        process.send_signal(signum)
        assert process.wait(20) == 0


@pytest.mark.parametrize("protocol", Ports._fields)
def test_an_address_that_is_taken_is_said(protocol):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [TANDEM, "front", f"--triton-{protocol}", "127.0.0.1:1"]
        command += [f"--{protocol}-port", port]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert f"tandem: The front cannot listen on 127.0.0.1:{port}" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_method_whose_name_is_no_text_ends_nobody():
    with started("127.0.0.1:1") as (process, address), grpc.insecure_channel(address) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary(b"/\xff\xfe")(b"", timeout=1)
        assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        with pytest.raises(grpc.RpcError, match="lets in what asks for models"):
            channel.unary_unary(f"{SERVICE}RepositoryIndex")(b"", timeout=20)
        assert process.poll() is None


@pytest.mark.parametrize(
    "method",
    ["/grpc.health.v1.Health/Watch", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"],
)
def test_what_clients_do_without_is_not_there(method):
    """gRPC's own health checking, and grpcurl, go on where this is said, and nowhere else."""
    with started("127.0.0.1:1") as (_, address), grpc.insecure_channel(address) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            list(channel.unary_stream(method)(b"", timeout=20))
        assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


def answer(address, **more):
    with GrpcClient(address, "tandem") as client:
        return client.generate(PROMPT, GREEDY, max_tokens=32, **more)


@pytest.mark.triton
def test_it_answers_as_triton_does(front, triton_server):
    assert answer(front).text == answer(triton_server.endpoints.grpc).text
    with InferenceServerClient(front) as client:
        assert client.is_server_ready()
        assert client.is_model_ready("tandem")
        assert client.get_model_config("tandem").config.name == "tandem"
        with pytest.raises(InferenceServerException, match="unknown model"):
            client.get_model_metadata("nobody")


@pytest.mark.triton
def test_tokens_come_one_by_one(front):
    with GrpcClient(front, "tandem") as client:
        begun, times = time.monotonic(), []
        for _ in client.stream(PROMPT, GREEDY | {"num_draft_tokens": 0}, max_tokens=400):
            times.append(time.monotonic() - begun)
    assert len(times) > 4
    assert times[0] < times[-1] / 2


@pytest.mark.triton
def test_what_ends_the_model_is_refused_and_nobody_beside_it_notices(front, triton_server):
    with GrpcClient(front, "tandem") as client, grpc.insecure_channel(front) as channel:
        beside = client.stream(PROMPT, GREEDY, max_tokens=200)
        next(beside)
        for _ in range(3):
            outcome = over_grpc(channel, ENDS_THE_MODEL)
            assert (outcome.answers, len(outcome.errors)) == (0, 1)
            assert "more elements than the message has bytes" in outcome.errors[0]
        assert list(beside)[-1].finish_reason == "length"
    assert answer(triton_server.endpoints.grpc).text


@pytest.mark.triton
def test_a_request_that_the_model_refuses_is_refused_as_by_triton(front, triton_server):
    wrong = message([RawTensor("text_input", "BYTES", [1], strings(b""))], {})
    found = []
    for address in (front, triton_server.endpoints.grpc):
        with grpc.insecure_channel(address) as channel:
            found.append(over_grpc(channel, wrong))
    assert found[0] == found[1]
    assert found[0].errors


@pytest.mark.triton
@pytest.mark.parametrize("shape", [[1 << 62], [2]])
def test_requests_without_a_stream_are_passed_on_or_refused_too(front, shape):
    """Triton itself has none of them for such a model."""
    whole = message([RawTensor("input_ids", "INT32", shape, b"\1\0\0\0\2\0\0\0")], {})
    with grpc.insecure_channel(front) as channel:
        call = channel.unary_unary(f"{SERVICE}ModelInfer")
        with pytest.raises(grpc.RpcError) as raised:
            call(whole, timeout=30)
    said = "decoupled transaction policy" if shape == [2] else "more elements than the message"
    assert said in raised.value.details()


@pytest.mark.triton
def test_no_header_reaches_triton(front, triton_server):
    """With this one it ends behind an error on a stream."""
    wrong = message([RawTensor("text_input", "BYTES", [1], strings(b""))], {})
    with grpc.insecure_channel(front) as channel:
        call = channel.stream_stream(f"{SERVICE}ModelStreamInfer")
        assert list(call(iter([wrong]), timeout=30, metadata=[("triton_grpc_error", "true")]))
    assert triton_server.exit_code() is None
    assert answer(front).text


@pytest.mark.triton
def test_more_requests_than_it_may_take_are_refused(triton_server):
    with (
        started(triton_server.endpoints.grpc, "--most-calls", "2") as (_, address),
        GrpcClient(address, "tandem") as client,
        InferenceServerClient(address) as asking,
    ):
        chunks = [client.stream(PROMPT, GREEDY, max_tokens=1500) for _ in range(2)]
        for one in chunks:
            next(one)
        with pytest.raises(errors.TandemError, match="2 requests are under way"):
            client.generate(PROMPT, max_tokens=1)
        assert asking.is_server_live()
        for one in chunks:
            one.close()


@pytest.mark.triton
def test_what_a_text_may_not_be_asked_for_is_refused(front, triton_server):
    """Triton 2.51 would end by it."""
    asked = service_pb2.ModelInferRequest.FromString(
        message([RawTensor("text_input", "BYTES", [1], strings(b"a"))], {})
    )
    asked.outputs.add(name="text_output").parameters["classification"].int64_param = 1
    with grpc.insecure_channel(front) as channel:
        outcome = over_grpc(channel, asked.SerializeToString())
    assert (outcome.answers, "classification" in outcome.errors[0]) == (0, True)
    assert triton_server.exit_code() is None


@pytest.mark.triton
def test_a_client_that_leaves_has_left_for_triton_too(front, triton_server):
    dropped = FINISHED, ("finished_reason", "abort")
    before = settled(triton_server.endpoints)[dropped]
    with GrpcClient(front, "tandem") as client:
        for _ in range(8):
            chunks = client.stream(PROMPT, GREEDY, max_tokens=1900)
            next(chunks)
            chunks.close()
    found = waited(triton_server.endpoints, lambda found: found[dropped] == before + 8)
    assert found[dropped] == before + 8


@pytest.mark.triton
@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.unload_model("tandem"),
        lambda client: client.get_model_repository_index(),
        lambda client: client.register_system_shared_memory("a", "/a", 1),
        lambda client: client.update_log_settings({"log_verbose_level": 1}),
        lambda client: client.update_trace_settings(settings={"trace_rate": "1"}),
    ],
    ids=["unload", "index", "shared memory", "log", "trace"],
)
def test_nothing_but_models_is_reached(front, ask):
    with InferenceServerClient(front) as client:
        with pytest.raises(InferenceServerException, match="lets in what asks for models"):
            ask(client)
        assert client.is_model_ready("tandem")


@pytest.mark.triton
def test_a_client_that_leaves_right_behind_its_answer_holds_no_model(tmp_path):
    """Triton 2.51 would keep such requests for ever, and the model with them."""
    write_model(tmp_path, "echo", ECHO, CONFIG + entry("drain_timeout", "1"))
    asked = message([RawTensor("text_input", "BYTES", [1], strings(b"a"))], {}, model="echo")
    with (
        TritonServer(ServerOptions(tmp_path, ("echo",))) as server,
        front_before(server.endpoints) as front,
        grpc.insecure_channel(front.endpoints.grpc) as channel,
    ):
        for _ in range(200):
            over = threading.Event()
            answers = channel.stream_stream(STREAM)(behind(asked, over))
            assert next(answers).endswith(b"\1\0\0\0a")
            answers.cancel()
            over.set()
        assert server.drain()
