"""What a request says, as it is handed to vLLM."""

import pytest

from tandem import EngineConfig
from tandem.limits import Limits
from tandem.request import SamplingParams
from tandem.vllm.arguments import engine_arguments, environment, sampling_arguments

HUGE = 10**30


@pytest.fixture
def asked():
    limits = Limits(vocab_size=96, max_model_len=40, eos_ids=frozenset(), methods=("none",))

    def ask(**params):
        request = limits.request("a", [1, 2], SamplingParams(**params), None)
        return sampling_arguments(request)

    return ask


def test_numbers_that_are_too_large_for_it_do_not_reach_it(asked):
    """They would end vLLM's core, and with it every other request."""
    found = asked(max_tokens=HUGE, min_tokens=HUGE, top_k=HUGE, num_draft_tokens=HUGE)
    whole = [
        found["max_tokens"],
        found["min_tokens"],
        found["top_k"],
        *found["extra_args"].values(),
    ]
    assert whole[:2] == [38, 38]
    assert all(1000 < number < 1 << 31 for number in whole[2:])


def test_numbers_that_fit_are_as_they_were(asked):
    found = asked(max_tokens=8, min_tokens=3, top_k=-1, num_draft_tokens=2)
    assert (found["max_tokens"], found["min_tokens"], found["top_k"]) == (8, 3, 0)
    assert list(found["extra_args"].values()) == [2]
    assert list(asked()["extra_args"].values()) == [None]


@pytest.mark.parametrize("param", [{"seed": 1}, {"min_p": 0.1}, {"logit_bias": {3: 1.0}}], ids=str)
def test_what_it_would_not_do_for_drafts_goes_without(asked, param):
    assert list(asked(**param, num_draft_tokens=4)["extra_args"].values()) == [0]
    greedy = asked(**param, num_draft_tokens=4, temperature=0)
    assert list(greedy["extra_args"].values()) == [0 if "logit_bias" in param else 4]


@pytest.mark.parametrize("devices", ["auto", "cuda:1,cuda:2"])
def test_processes_on_gpus_are_begun_as_those_on_cpus_are(devices):
    found = environment(EngineConfig(engine="vllm", model="target", devices=devices), on_cpu=False)
    assert found["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    named = {} if devices == "auto" else {"CUDA_VISIBLE_DEVICES": "1,2"}
    assert {name: found[name] for name in found if name.startswith("CUDA")} == named


def test_further_arguments_are_laid_beside_ours_and_have_the_last_word():
    config = EngineConfig(
        engine="vllm",
        model="target",
        draft_model="draft",
        draft_max_model_len=64,
        vllm_engine_args={
            "speculative_config": {"num_speculative_tokens": 2, "parallel_drafting": True},
            "max_num_seqs": 3,
        },
    )
    found = engine_arguments(config, on_cpu=False)
    assert found["max_num_seqs"] == 3
    assert found["model"] == "target"
    assert found["speculative_config"] == {
        "method": "draft_model",
        "model": "draft",
        "draft_tensor_parallel_size": 1,
        "max_model_len": 64,
        "num_speculative_tokens": 2,
        "parallel_drafting": True,
    }
