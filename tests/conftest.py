"""What the tests of all folders share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandem.serving import ServerOptions, TritonServer
from tandem.serving.overrides import overridden

WAITING = {"front", "serving", "docker", "vllm"}
"""Folders whose tests start and end servers or vLLM, and ask them little."""
STEADY = {"dtype": "float32", "adaptive_speculation": "false"}
MODEL_REPOSITORY = Path(__file__).parents[1] / "model_repository"


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks those of these folders."""
    for item in items:
        if item.path.parent.name in WAITING:
            item.add_marker("waiting")


@contextmanager
def steady_server(
    model: str, folder: Path, repository: Path = MODEL_REPOSITORY
) -> Iterator[TritonServer]:
    """A server of one model, in float32, and drafting in every round, so that neither ties of
    bfloat16 logits nor a busy machine decide what a test sees. Its log is in the folder."""
    with (
        overridden(repository, (model,), STEADY) as made,
        TritonServer(ServerOptions(made, (model,), log_path=folder / "server.log")) as server,
    ):
        yield server


def pytest_addoption(parser: pytest.Parser) -> None:
    """The contract is one for all models."""
    parser.addoption(
        "--serve", default="tandem", help="Model that is served under the name tandem."
    )


@pytest.fixture(scope="session")
def served_model(request: pytest.FixtureRequest) -> Path:
    """Folder of the model that the tests of the contract talk to as `tandem`."""
    return MODEL_REPOSITORY / request.config.getoption("--serve")


@pytest.fixture(scope="session")
def triton_server(
    tmp_path_factory: pytest.TempPathFactory, served_model: Path
) -> Iterator[TritonServer]:
    """A tritonserver with the model `tandem` on free ports, one for the whole session."""
    folder = tmp_path_factory.mktemp("triton")
    (folder / "tandem").symlink_to(served_model)
    with steady_server("tandem", folder, folder) as server:
        yield server
