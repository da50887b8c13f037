"""The engine vllm behind the service: exact, as drawn, and gone when it should be."""

import os
import signal
from collections import Counter
from pathlib import Path

import psutil
import pytest
import torch
from scipy.stats import chi2_contingency

from tandem import Engine, EngineConfig, SamplingParams
from tandem.engine_process import TITLES, VLLM_SOCKETS
from tandem.errors import EngineDeadError
from tandem.leftovers import SHARED
from tandem.metrics import FINISHED, GENERATED_TOKENS, KV_USAGE, RUNNING, WAITING, Key, merged
from tandem.service import EngineService
from tests.engine.sinks import Answer, submit, until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

PAIR = Path(__file__).parents[2] / "model_repository" / "tandem" / "1"
PROMPTS = ["def main():", "import os", "class Stack:\n    def push", "for line in lines:"]
GREEDY = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
SAMPLES = 1500
CPU_BLOCK = 128  # tokens, of vLLM's own choice
START_S = 240  # most that a start of vLLM takes on a busy machine
SUMS = "cpushm"
RANKS_THAT_SHARE_SUMS = 2 if torch.cpu._is_avx512_supported() else 0  # vLLM has it for AVX-512


def config(**parameters):
    pair = {"model": PAIR / "target", "draft_model": PAIR / "draft", "dtype": "float32"}
    return EngineConfig(**pair | {"kv_cache_memory": "256MiB", "max_model_len": 512} | parameters)


def vllm_config(**parameters):
    return config(engine="vllm", vllm_engine_args={"enforce_eager": True}, **parameters)


def family(service):
    """The engine's process and all that it started."""
    engine = psutil.Process(service.pid)
    return [engine, *engine.children(recursive=True)]


def ids(answer: Answer) -> list[int]:
    return [token for output in answer.wait().outputs for token in output.token_ids]


@pytest.fixture(scope="module")
def reports():
    """Of the service, in their order."""
    return []


@pytest.fixture(scope="module")
def service(reports):
    one = EngineService(
        vllm_config(max_queue_size=SAMPLES, num_threads=2), on_report=reports.append
    )
    yield one
    one.stop()


@pytest.fixture(scope="module")
def ranks():
    """A target of two ranks, and a draft of one."""
    parallel = {"tensor_parallel_size": 2, "draft_tensor_parallel_size": 1, "step_timeout": 10}
    one = EngineService(vllm_config(**parallel))
    yield one
    one.stop()


@pytest.fixture(scope="module")
def native_ids():
    """What our own engine writes greedily."""
    with Engine(config()) as engine:
        return [output.token_ids for output in engine.generate(PROMPTS, GREEDY)]


def test_what_warms_it_up_is_counted_nowhere(service, reports):
    assert ids(submit(service, PROMPTS[0], GREEDY))
    until(lambda: merged(reports).counts.get(Key(GENERATED_TOKENS), 0) >= 48)
    total = merged(reports).counts
    assert (total[Key(GENERATED_TOKENS)], total[Key(FINISHED, "length")]) == (48, 1)
    assert merged(reports).gauges.keys() >= {Key(KV_USAGE, "target"), Key(KV_USAGE, "draft")}


def test_blocks_are_in_use_while_requests_run_and_free_behind_aborts(service, reports):
    def told():
        """Running and waiting requests, and what they use of both caches."""
        keys = Key(RUNNING), Key(WAITING), Key(KV_USAGE, "target"), Key(KV_USAGE, "draft")
        return [merged(reports).gauges.get(key) for key in keys]

    answers = [submit(service, PROMPTS[n % 4], LONG) for n in range(80)]  # 64 run, 16 wait
    until(lambda: all(told()))
    for answer in answers:
        service.abort(answer.id)
    assert "abort" in [answer.wait().reason for answer in answers]
    until(lambda: told()[:2] == [0, 0])
    assert told() == [0, 0, 0, 0]


def test_both_engines_write_the_same(service, native_ids):
    assert [ids(answer) for answer in [submit(service, p, GREEDY) for p in PROMPTS]] == native_ids


def test_without_a_method_it_writes_the_same(native_ids):
    arguments = {"enforce_eager": True, "max_logprobs": 0}  # nor is anything ranked at its start
    one = EngineService(
        config(engine="vllm", speculative_method="none", vllm_engine_args=arguments)
    )
    try:
        answers = [submit(one, prompt, GREEDY) for prompt in PROMPTS]
        assert [ids(answer) for answer in answers] == native_ids
        assert all(answer.outputs[-1].stats.rounds == 0 for answer in answers)
    finally:
        one.stop()


def sampled_tokens(service, k):
    """The second and third token of many samples; drafts come after the first."""
    params = SamplingParams(
        temperature=0.7, top_k=12, top_p=0.95, max_tokens=3, ignore_eos=True, num_draft_tokens=k
    )
    answers = [submit(service, "import ", params) for _ in range(SAMPLES)]
    return [tuple(ids(answer)[1:]) for answer in answers]


def test_samples_are_distributed_as_without_drafts(service):
    with_drafts, without = sampled_tokens(service, 4), sampled_tokens(service, 0)
    counts = [Counter(with_drafts), Counter(without)]
    common = [pair for pair, count in (counts[0] + counts[1]).items() if count >= 20]
    assert len(common) > 10
    table = [[count[pair] for pair in common] for count in counts]
    rest = [[SAMPLES - sum(row)] for row in table]
    assert (
        chi2_contingency([row + other for row, other in zip(table, rest, strict=True)]).pvalue
        > 1e-4
    )


def test_a_seed_decides_whatever_the_drafts_and_the_batch(service):
    params = {"temperature": 0.9, "seed": -1, "max_tokens": 24, "ignore_eos": True}
    alone = ids(submit(service, PROMPTS[0], SamplingParams(**params)))
    others = [submit(service, prompt, GREEDY) for prompt in PROMPTS]
    among = ids(submit(service, PROMPTS[0], SamplingParams(num_draft_tokens=2, **params)))
    assert among == alone
    assert [len(ids(other)) for other in others] == [48] * len(PROMPTS)


@pytest.mark.parametrize(
    "params", [{"temperature": 1.0, "seed": 7}, {"temperature": 0, "logit_bias": {5: 100.0}}]
)
def test_a_text_is_the_same_where_all_but_its_last_token_is_cached(service, params):
    """Also of requests without drafts, to which vLLM would give some that are none."""
    text = list(range(300, 300 + 1 + CPU_BLOCK))
    answers = [
        ids(submit(service, text, SamplingParams(max_tokens=6, ignore_eos=True, **params)))
        for _ in range(3)
    ]
    assert answers == [answers[0]] * 3
    assert "logit_bias" not in params or answers[0] == [5] * 6


def test_counts_are_there_when_a_stop_string_ends_it(service):
    text = submit(service, PROMPTS[0], GREEDY).wait().text
    stop = GREEDY.model_copy(update={"stop": [text[-12:-6]]})
    answer = submit(service, PROMPTS[0], stop).wait()
    stats = answer.outputs[-1].stats
    assert answer.reason == "stop"
    assert 0 < stats.accepted <= stats.drafted
    assert stats.rounds


def test_priorities_decide_who_of_those_waiting_is_begun():
    ended = []

    class Named(Answer):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def on_output(self, output):
            if output.finished:
                ended.append(self.name)
            super().on_output(output)

    one = EngineService(vllm_config(max_num_seqs=1))
    try:
        answers = [submit(one, PROMPTS[0], LONG)]
        assert answers[0].begun.wait(60)
        for priority in (5, 0, -5):
            answers.append(Named(priority))
            params = GREEDY.model_copy(update={"priority": priority, "max_tokens": 4})
            one.submit(PROMPTS[0], params, answers[-1])
        assert [answer.wait().errors for answer in answers] == [[]] * 4
        assert ended == [-5, 0, 5]
    finally:
        one.stop()


def test_its_processes_are_forked_and_a_rank_has_a_thread_on_each_of_its_cores(service):
    """So vLLM is imported twice at a time, and not three times one behind the other."""
    names = [(process, " ".join(process.cmdline())) for process in family(service)]
    server, core, rank = (
        next(process for process, name in names if part in name)
        for part in ("multiprocessing.forkserver", "EngineCore", "VLLM::Worker")
    )
    assert (core.ppid(), rank.ppid()) == (server.pid, core.pid)
    assert "GOMP_CPU_AFFINITY" not in rank.environ()  # else it is spawned
    places = [os.sched_getaffinity(thread.id) for thread in rank.threads()]
    given = sorted(os.sched_getaffinity(0))[:2]
    assert not [number for number in given if {number} not in places]
    assert os.sched_getaffinity(core.pid) == os.sched_getaffinity(0)


def shared_by(processes):
    """What they have in shared memory."""
    mapped = {Path(one.path) for process in processes for one in process.memory_maps()}
    return [path for path in mapped if SHARED in path.parents and path.exists()]


@pytest.mark.parametrize("victim", ["engine_main", "multiprocessing.forkserver", "EngineCore"])
def test_what_is_killed_is_said_and_repaired_and_leaves_nothing(service, victim):
    before = family(service)
    names = {process.pid: " ".join(process.cmdline()) for process in before}
    given = before[0].environ()
    assert given.items() >= TITLES.items()
    assert not [names[one.pid] for one in before if not one.environ().keys() >= given.keys()]
    sockets = Path(given[VLLM_SOCKETS])
    assert list(sockets.iterdir())
    regions = shared_by(before)
    assert regions
    answer = submit(service, PROMPTS[0], LONG)
    assert answer.begun.wait(60)
    [killed] = [process for process in before if victim in names[process.pid]]
    killed.kill()
    answer.wait()
    [error] = answer.errors
    assert isinstance(error, EngineDeadError)
    assert "send the request again" in str(error)
    assert not psutil.wait_procs(before, timeout=5)[1]
    until(lambda: service.alive, START_S)
    assert not sockets.exists()
    assert ids(submit(service, PROMPTS[0], GREEDY))
    assert not [region for region in regions if region.exists()]


def test_a_target_of_two_ranks_with_a_draft_of_one_writes_the_same(ranks, native_ids):
    answers = [submit(ranks, prompt, GREEDY) for prompt in PROMPTS]
    assert [ids(answer) for answer in answers] == native_ids
    assert all(answer.outputs[-1].stats.accepted for answer in answers)


@pytest.mark.parametrize(
    ("signum", "said"),
    [(signal.SIGKILL, "send the request again"), (signal.SIGSTOP, "10 s that step_timeout allows")],
)
def test_a_lost_rank_is_said_and_repaired_and_leaves_nothing(ranks, native_ids, signum, said):
    """One that is killed, and one that hangs."""
    before = family(ranks)
    regions = shared_by(before)
    assert sum(SUMS in region.name for region in regions) == RANKS_THAT_SHARE_SUMS
    [rank] = [process for process in before if "Worker_TP1" in " ".join(process.cmdline())]
    answer = submit(ranks, PROMPTS[0], LONG)
    assert answer.begun.wait(60)
    rank.send_signal(signum)
    [error] = answer.wait().errors
    assert isinstance(error, EngineDeadError)
    assert said in str(error)
    assert not psutil.wait_procs(before, timeout=10)[1]
    until(lambda: ranks.alive, START_S)
    assert not [region for region in regions if region.exists()]
    assert ids(submit(ranks, PROMPTS[0], GREEDY)) == native_ids[0]


def test_ranks_that_are_stopped_leave_nothing(ranks):
    before = family(ranks)
    regions = shared_by(before)
    assert regions
    folder = Path(before[0].environ()[VLLM_SOCKETS])
    [met] = {one.name.partition("-")[0] for one in folder.glob("vllm_dist_*")}
    of_sums = {region.name.partition("-")[0] for region in regions if SUMS in region.name}
    assert of_sums == ({met} if RANKS_THAT_SHARE_SUMS else set())
    ranks.stop()
    assert not psutil.wait_procs(before, timeout=10)[1]
    assert not [region for region in regions if region.exists()]
    assert not folder.exists()
