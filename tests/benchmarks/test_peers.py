"""A peer's process: the engine it runs, what it answers, and how it says that it could not."""

import pytest

from benchmarks.peers.process import TANDEM, TRANSFORMERS, Peer
from benchmarks.peers.worker import Case
from tandem import Engine, EngineConfig, SamplingParams
from tests.engine.checkpoints import make_checkpoint

PROMPTS = [[5, 9, 5, 9, 5, 9], [1, 2, 3, 4, 5, 6]]
NEW = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("peers"), seed=1, scale=4.0)


@pytest.mark.parametrize("software", [TANDEM, TRANSFORMERS], ids=lambda one: one.name)
@pytest.mark.parametrize("method", ["none", "ngram", "draft_model"])
def test_peers_write_what_the_engine_writes(software, method, model, tmp_path):
    config = EngineConfig(model=model, dtype="float32", kv_cache_memory="4MiB")
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
    with Engine(config) as engine:
        expected = [output.token_ids for output in engine.generate(PROMPTS, params)]
    draft = str(model) if method == "draft_model" else ""
    case = Case(str(model), draft, method, 0 if method == "none" else 3, threads=1, most=2)
    with Peer(software, case, tmp_path / "peer.log") as peer:
        runs = [peer.run([prompt], NEW) for prompt in PROMPTS]
    assert [peer.answers[tuple(prompt)] for prompt in PROMPTS] == expected
    assert all(run.tokens == NEW and run.seconds > 0 for run in runs)
    assert peer.version


def test_a_peer_that_cannot_load_names_its_log(tmp_path):
    log = tmp_path / "peer.log"
    with pytest.raises(RuntimeError, match=str(log)):
        Peer(TANDEM, Case(str(tmp_path), "", "none", 0, threads=1, most=1), log)
    assert "config.json" in log.read_text()
