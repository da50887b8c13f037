"""What the tests of all folders share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.serving import ServerOptions, TritonServer
from tandem.serving.overrides import overridden

MODEL_REPOSITORY = Path(__file__).parents[1] / "model_repository"


@pytest.fixture(scope="session")
def triton_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A tritonserver with the model `tandem` on free ports, one for the whole session.

    In float32, so that no tie of bfloat16 logits decides what a test sees.
    """
    log = tmp_path_factory.mktemp("triton") / "server.log"
    with (
        overridden(MODEL_REPOSITORY, ("tandem",), {"dtype": "float32"}) as repository,
        TritonServer(ServerOptions(repository, ("tandem",), log_path=log)) as server,
    ):
        yield server
