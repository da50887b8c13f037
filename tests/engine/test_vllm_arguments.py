"""What a request says, as it is handed to vLLM."""

import pytest

from tandem import EngineConfig
from tandem.errors import ConfigError
from tandem.limits import Limits
from tandem.request import SamplingParams
from tandem.vllm import starts
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


def test_gpus_have_processes_and_a_model_runner_as_cpus_have():
    found = environment(EngineConfig(engine="vllm", model="target"), on_cpu=False)
    assert found[starts.METHOD] == "spawn"
    assert found["VLLM_USE_V2_MODEL_RUNNER"] == "0"


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
        "num_speculative_tokens_per_batch_size": [(1, 64, 4)],
        "parallel_drafting": True,
    }


def test_groups_of_the_drafts_own_do_not_share_the_targets_room():
    wide = {"draft_model": "draft", "tensor_parallel_size": 4, "draft_tensor_parallel_size": 2}
    config = EngineConfig(engine="vllm", model="target", **wide)
    fused = engine_arguments(config, on_cpu=False)["compilation_config"]["pass_config"]
    assert fused == {"fuse_allreduce_rms": False}
    for size in (1, 4):
        other = config.model_copy(update={"draft_tensor_parallel_size": size})
        assert "compilation_config" not in engine_arguments(other, on_cpu=False)


@pytest.mark.parametrize(
    ("devices", "seen", "found"),
    [
        ("cuda:1,cuda:2", None, "1,2"),
        ("cuda:1", "4,7", "7"),
        ("cuda:0", "GPU-5ebe", "GPU-5ebe"),
        ("auto", "4,7", None),
    ],
)
def test_gpus_are_counted_among_those_that_triton_may_see(monkeypatch, devices, seen, found):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if seen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    config = EngineConfig(engine="vllm", model="target", devices=devices)
    assert environment(config, on_cpu=False).get("CUDA_VISIBLE_DEVICES") == found


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ("cuda:2", "CUDA_VISIBLE_DEVICES is 4,7: there are 2"),
        ("cuda:0", "CUDA_VISIBLE_DEVICES is : there are 0"),
        ("cuda,cuda", "names cuda:"),
    ],
)
def test_gpus_that_are_not_there_are_named(monkeypatch, devices, said):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7" if "4,7" in said else "")
    config = EngineConfig(engine="vllm", model="target", devices=devices)
    with pytest.raises(ConfigError, match=said):
        environment(config, on_cpu=False)
