"""On a GPU: a round of one launch writes what the same round writes pass by pass."""

import pytest
import torch

from tandem import Engine, EngineConfig, SamplingParams
from tandem.drafting.chain import ChainProposer
from tests.engine.checkpoints import perturb_checkpoint
from tests.engine.gpu_checks import CASES, attention, rejection

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
    for way in ("fused", "by passes", "cpu"):
        devices = "cpu" if way == "cpu" else "cuda"
        with Engine(config.model_copy(update={"devices": devices})) as engine:
            assert isinstance(engine.proposer, ChainProposer)
            rounds = engine.proposer.rounds
            assert (rounds is None) == (way == "cpu")
            if way != "fused":
                engine.proposer.rounds = None
            texts.append([])
            for batch in (1, 3, 4, 1, 7):
                prompts = [[5 + batch, 9, place, 9, 5] for place in range(batch)]
                texts[-1] += [one.token_ids for one in engine.generate(prompts, params)]
            if way == "fused":
                assert all(one._replay for one in rounds._rounds.values())
                assert {bucket.requests for bucket in rounds._rounds} >= {1, 4, 8}
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_attention_over_drafts(case, dtype):
    attention(**CASES[case] | {"dtype": dtype, "device": "cuda"})


def test_drafts_are_judged_as_the_target_says():
    rejection("cuda")
