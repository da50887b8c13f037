"""On a GPU: a round of one launch writes what the same round writes pass by pass."""

import pytest
import torch

from tandem import Engine, EngineConfig, SamplingParams
from tandem.drafting.chain import ChainProposer
from tests.engine.checkpoints import perturb_checkpoint

SAMPLING = [
    {"temperature": 0},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 0.8, "seed": 4, "top_k": 9, "top_p": 0.9},
]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize("sampling", SAMPLING)
def test_rounds_of_one_launch(sampling, target, tmp_path):
    """Of other requests each time, so that graphs are launched again with other inputs."""
    config = EngineConfig(
        model=target,
        draft_model=perturb_checkpoint(target, tmp_path / "draft", noise=0.05),
        kv_cache_memory="16MiB",
        dtype="float32",
        devices="cuda",
        adaptive_speculation=False,
    )
    params = SamplingParams(max_tokens=24, ignore_eos=True, **sampling)
    texts = []
    for fused in (True, False):
        with Engine(config) as engine:
            assert isinstance(engine.proposer, ChainProposer)
            assert engine.proposer.rounds is not None
            if not fused:
                engine.proposer.rounds = None
            texts.append([])
            for batch in (1, 3, 4, 1, 7):
                prompts = [[5 + batch, 9, place, 9, 5] for place in range(batch)]
                texts[-1] += [one.token_ids for one in engine.generate(prompts, params)]
    assert texts[0] == texts[1]
