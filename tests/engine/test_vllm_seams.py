"""The vLLM plug-in against a vLLM made of stand-ins: all seams are replaced, or none."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from tandem.vllm import draft_tp


class Proposer:
    def _raise_if_draft_tp_mismatch(self):
        raise ValueError("must be the same")

    def load_model(self, target_model):
        return "loaded"

    def propose(self):
        return "proposed"

    def dummy_run(self):
        return "ran"


class SpeculativeConfig:
    @staticmethod
    def _verify_and_get_draft_tp(
        target_parallel_config, speculative_draft_tensor_parallel_size, draft_hf_config
    ):
        return speculative_draft_tensor_parallel_size or target_parallel_config.tensor_parallel_size


def start(vllm_config):
    """Stands for init_worker_distributed_environment."""


def new_group(group_ranks, local_rank, backend):
    """Stands for init_model_parallel_group."""


def fresh(cls):
    return type(cls.__name__, (), dict(vars(cls)))


@pytest.fixture
def vllm(monkeypatch):
    """Modules by name, in sys.modules for the test's time."""
    contents = {
        "vllm": {"__version__": "0.32.0"},
        "vllm.config.speculative": {"SpeculativeConfig": fresh(SpeculativeConfig)},
        "vllm.v1.worker.gpu_worker": {"init_worker_distributed_environment": start},
        "vllm.v1.worker.cpu_worker": {"init_worker_distributed_environment": start},
        "vllm.v1.spec_decode.draft_model": {"DraftModelProposer": fresh(Proposer)},
        "vllm.distributed.parallel_state": {
            "init_model_parallel_group": new_group,
            "get_tp_group": lambda: None,
            "get_world_group": lambda: None,
            "_TP": "target's",
        },
    }
    modules = {}
    for name, values in contents.items():
        modules[name] = ModuleType(name)
        vars(modules[name]).update(values)
        monkeypatch.setitem(sys.modules, name, modules[name])
    return modules


def size_check(vllm):
    return vllm["vllm.config.speculative"].SpeculativeConfig._verify_and_get_draft_tp


def snapshot(vllm):
    """Everything that the plug-in could replace."""
    contents = {name: dict(vars(module)) for name, module in vllm.items()}
    classes = [value for values in contents.values() for value in values.values()]
    return contents, [dict(vars(value)) for value in classes if isinstance(value, type)]


def test_every_divisor_is_taken_and_nothing_else(vllm):
    draft_tp.register()
    target = SimpleNamespace(tensor_parallel_size=4)
    assert [size_check(vllm)(target, size, None) for size in (1, 2, 4, None)] == [1, 2, 4, 4]
    with pytest.raises(ValueError, match="choose a divisor of 4"):
        size_check(vllm)(target, 3, None)
    proposer = vllm["vllm.v1.spec_decode.draft_model"].DraftModelProposer()
    proposer._raise_if_draft_tp_mismatch()
    assert proposer.propose() == "proposed"  # without groups of its own, as before


MOVED = [(seam, "gone") for seam in draft_tp.SEAMS]
MOVED += [(seam, "changed") for seam in draft_tp.SEAMS if seam.parameters]


@pytest.mark.parametrize(("seam", "how"), MOVED, ids=str)
def test_a_moved_seam_is_named_and_nothing_is_replaced(vllm, caplog, seam, how):
    owner = vllm[seam.module]
    *path, last = seam.name.split(".")
    for part in path:
        owner = getattr(owner, part)
    if how == "gone":
        delattr(owner, last)
    else:
        setattr(owner, last, lambda other: None)
    before = snapshot(vllm)
    draft_tp.register()
    assert str(seam) in caplog.text
    assert snapshot(vllm) == before


def test_an_unknown_version_is_left_alone(vllm, caplog):
    vllm["vllm"].__version__ = "0.33.1"
    before = snapshot(vllm)
    draft_tp.register()
    assert "vLLM 0.33.1" in caplog.text
    assert snapshot(vllm) == before


def test_only_a_draft_model_on_the_first_runner_gets_groups():
    def config(t, d, method="draft_model", v2=False):
        speculative = SimpleNamespace(
            method=method, draft_parallel_config=SimpleNamespace(tensor_parallel_size=d)
        )
        parallel = SimpleNamespace(tensor_parallel_size=t)
        return SimpleNamespace(
            speculative_config=speculative, parallel_config=parallel, use_v2_model_runner=v2
        )

    assert draft_tp._own_size(config(4, 2)) == 2
    assert draft_tp._own_size(config(4, 4)) is None
    assert draft_tp._own_size(config(4, 2, "eagle")) is None
    assert draft_tp._own_size(SimpleNamespace(speculative_config=None)) is None
    with pytest.raises(ValueError, match="VLLM_USE_V2_MODEL_RUNNER=0"):
        draft_tp._own_size(config(4, 2, v2=True))
