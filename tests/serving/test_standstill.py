"""A model whose process stood still while it was loaded: the load fails, and has an end."""

import threading
import time

import psutil
import pytest
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from tandem.serving import ServerOptions, TritonServer
from tandem_client import GrpcClient
from tests.conftest import MODEL_REPOSITORY, steady_server

pytestmark = [pytest.mark.triton, pytest.mark.timeout(300)]
STOPPED_S = 3.0
LOAD_S = 60.0


@pytest.fixture
def server(tmp_path):
    with steady_server("tandem", tmp_path) as one:
        yield one


def processes(server):
    """Of the model, that answer requests: others look at its configuration."""
    found = set()
    for process in psutil.Process(server.pid).children():
        try:
            found |= {process} if "tandem_0_0" in process.cmdline() else set()
        except psutil.Error:
            continue
    return found


def stop_a_while(server, before):
    """Stops the model's next process while it starts its engine."""
    while not (come := processes(server) - before):
        time.sleep(0.01)
    [come] = come
    while len(come.children()) < 2:  # its guardian, and its engine that is being started
        time.sleep(0.01)
    come.suspend()
    time.sleep(STOPPED_S)
    come.resume()


def test_a_start_in_which_the_models_process_stood_still_is_made_again(tmp_path):
    options = ServerOptions(MODEL_REPOSITORY, ("tandem",), log_path=tmp_path / "server.log")
    server = TritonServer(options)
    server.start()
    stopping = threading.Thread(target=stop_a_while, args=(server, set()))
    stopping.start()
    try:
        server.wait_ready()
        stopping.join()
        assert server.starts > 1  # more where the machine is paused meanwhile
        with GrpcClient(server.endpoints.grpc) as client:
            assert client.generate("def main():", max_tokens=4).num_tokens == 4
    finally:
        server.stop()


def test_a_load_in_which_the_models_process_stood_still_fails_and_the_next_one_does_not(server):
    before = processes(server)

    again = server.options.model_repository / "tandem" / "again"
    stopping = threading.Thread(target=stop_a_while, args=(server, before))
    stopping.start()
    with InferenceServerClient(server.endpoints.grpc) as control:
        again.touch()
        with pytest.raises(InferenceServerException, match="load failed for model 'tandem'"):
            control.load_model("tandem", client_timeout=LOAD_S)
        stopping.join()
        assert processes(server) == before  # the old one serves on
        with GrpcClient(server.endpoints.grpc) as client:
            assert client.generate("def main():", max_tokens=4).num_tokens == 4
            again.touch()
            control.load_model("tandem", client_timeout=LOAD_S)
            assert client.generate("def main():", max_tokens=4).num_tokens == 4
    assert "its process did not run for" in server.log_path.read_text(errors="replace")
