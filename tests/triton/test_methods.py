"""Every method through Triton, with nothing but its name and its folder in config.pbtxt."""

import pytest

from tandem.serving import ServerOptions, TritonServer
from tandem.serving.overrides import overridden
from tandem_client import GrpcClient
from tests.conftest import STEADY
from tests.engine.heads import DEMO, METHODS, make_head
from tests.triton.conftest import PROMPT
from tests.triton.repository import MODEL_REPOSITORY

GREEDY = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 64}
DRAFT = str(MODEL_REPOSITORY / "tandem" / "1" / "draft")


def settings(folder):
    """Parameters of each model: random heads, which guess wrong, and what needs none."""
    found = {
        method: {
            "speculative_method": METHODS[method],
            "draft_model": str(make_head(folder / method, method, shape=DEMO)),
        }
        for method in METHODS
    }
    found["eagle3_tree"] = found["eagle3"] | {"speculative_tree": "3"}
    found["draft_tree"] = {"speculative_tree": "2", "draft_model": DRAFT}
    found["suffix"] = {"speculative_method": "suffix", "draft_model": ""}
    found["mixture"] = {"speculative_method": "suffix, ngram, draft_model", "draft_model": DRAFT}
    found["mixture"]["adaptive_speculation"] = "true"
    found["adaptive"] = {"draft_model": DRAFT, "adaptive_speculation": "true"}
    found["block"] = {"acceptance_method": "block", "draft_model": DRAFT}
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """URL of a server with a model for each."""
    folder = tmp_path_factory.mktemp("methods")
    repository = folder / "repository"
    repository.mkdir()
    every = settings(folder / "heads")
    for name, parameters in every.items():
        common = STEADY | {"kv_cache_memory": "48MiB"}
        common |= {"num_threads": "1", "max_model_len": "1024"}
        with overridden(MODEL_REPOSITORY, ("tandem",), common | parameters) as made:
            model = repository / name
            model.mkdir()
            (model / "1").symlink_to(MODEL_REPOSITORY / "tandem" / "1")
            (model / "config.pbtxt").write_text((made / "tandem" / "config.pbtxt").read_text())
    with TritonServer(ServerOptions(repository, tuple(every))) as server:
        yield server.endpoints.grpc


@pytest.mark.parametrize(
    "name", [*METHODS, "eagle3_tree", "draft_tree", "suffix", "mixture", "adaptive", "block"]
)
def test_the_text_is_the_targets_own(served, greedy_text, name):
    with GrpcClient(served, name) as client:
        for _ in range(2):
            completion = client.generate(PROMPT, GREEDY)
            assert completion.text == greedy_text
        sampled = client.generate(PROMPT, GREEDY | {"temperature": 0.8})
    assert completion.stats.drafted
    assert sampled.num_tokens == 64
    if name in ("draft_tree", "suffix", "mixture", "block"):  # they have learnt something
        assert completion.stats.accepted
