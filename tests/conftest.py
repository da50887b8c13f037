"""What the tests of all folders share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.serving import ServerOptions, TritonServer

MODEL_REPOSITORY = Path(__file__).parents[1] / "model_repository"


@pytest.fixture(scope="session")
def triton_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A tritonserver with the model `tandem` on free ports, one for the whole session."""
    log = tmp_path_factory.mktemp("triton") / "server.log"
    options = ServerOptions(MODEL_REPOSITORY, ("tandem",), log_path=log)
    with TritonServer(options) as server:
        yield server
