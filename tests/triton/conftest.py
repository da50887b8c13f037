"""A served model for the contract's tests, and a look at the server's log behind them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tritonclient.grpc import InferenceServerClient

from tandem.serving import Endpoints, ServerOptions, TritonServer
from tests.triton import repository
from tests.triton.protocol import stream, text_of
from tests.triton.repository import MODEL_REPOSITORY

PROMPT = "def main(argv):\n"
# What a request must never leave in the log: a failure nobody caught.
_ACCIDENTS = ("Traceback", "error_already_set", "esponse sender", "Segmentation")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder need the server."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.triton)


@pytest.fixture(scope="session")
def urls(triton_server: TritonServer) -> Endpoints:
    """host:port of http, grpc and metrics."""
    return triton_server.endpoints


@pytest.fixture(scope="session")
def small_server(
    tmp_path_factory: pytest.TempPathFactory, served_model: Path
) -> Iterator[TritonServer]:
    """A second server: one request runs, one waits; and an ensemble."""
    folder = tmp_path_factory.mktemp("small")
    models = ("tandem", "pipeline")
    options = ServerOptions(
        repository.build(folder / "models", served_model), models, log_path=folder / "server.log"
    )
    with TritonServer(options) as server:
        yield server


@pytest.fixture(scope="session")
def small(small_server: TritonServer) -> Endpoints:
    """host:port of the small server's http, grpc and metrics."""
    return small_server.endpoints


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The tokenizer of the served model."""
    path = next((MODEL_REPOSITORY / "tandem").rglob("tokenizer.json"))
    return Tokenizer.from_file(str(path))


@pytest.fixture(scope="session")
def greedy_text(urls: Endpoints) -> str:
    """What the model greedily makes of PROMPT in 64 tokens."""
    return text_of(stream(urls.grpc, PROMPT, max_tokens=64))


@pytest.fixture(autouse=True, scope="module")
def clean_log(triton_server: TritonServer) -> Iterator[None]:
    """No test leaves a traceback in the server's log."""
    before = len(triton_server.log_path.read_text(errors="replace"))
    yield
    written = triton_server.log_path.read_text(errors="replace")[before:]
    accidents = [line for line in written.splitlines() if any(word in line for word in _ACCIDENTS)]
    assert not accidents, "\n".join(accidents)


@pytest.fixture
def control(small: Endpoints) -> Iterator[InferenceServerClient]:
    """Loads and unloads the small server's model, which is there again afterwards."""
    with InferenceServerClient(small.grpc) as client:
        yield client
        if not client.is_model_ready("tandem"):
            client.load_model("tandem")


@pytest.fixture
def changed(control: InferenceServerClient) -> Callable[..., str]:
    """The model's configuration as JSON, with other values for some parameters."""
    config = control.get_model_config("tandem", as_json=True)["config"]

    def build(**values: str) -> str:
        parameters = {key: {"string_value": value} for key, value in values.items()}
        return json.dumps(config | {"parameters": config["parameters"] | parameters})

    return build
