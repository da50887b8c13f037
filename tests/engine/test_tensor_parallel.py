"""Ranks: their number and placement change neither text nor proofs, and none is lost unnoticed."""

import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch

from tandem import Engine, SamplingParams
from tandem.attention.plan import Query
from tandem.errors import ConfigError, EngineDeadError
from tandem.models.config import read_model_config
from tandem.models.shard import Shard
from tandem.ranks import of as footprint_lines
from tandem.runners import world
from tandem.runners.collectives import collectives_a_forward
from tandem.runners.footprint import weight_count
from tandem.runners.groups import SharedMemoryGroup
from tandem.runners.model_runner import ModelRunner
from tandem.runners.placement import Placement
from tandem.service import EngineService
from tests.engine.checkpoints import make_checkpoint
from tests.engine.conftest import without_kernels
from tests.engine.references import logits_of
from tests.engine.sinks import LONG, WAIT_S, config_of, submit, until

RNG = random.Random(11)
PROMPTS = [RNG.choices(range(96), k=RNG.randrange(2, 40)) for _ in range(12)]
PARAMS = [
    SamplingParams(max_tokens=24, seed=index, temperature=0.0 if index % 2 else 1.0)
    for index in range(len(PROMPTS))
]
SHARED = [(2, 1), (2, 2), (4, 1), (4, 2)]
DEDICATED = [(1, 2), (2, 1), (1, 1)]
NOTICED_S = 5.0


def sizes(t, d, draft_devices=None):
    return {
        "tensor_parallel_size": t,
        "draft_tensor_parallel_size": d,
        "draft_devices": draft_devices,
        "num_threads": None,
    }


def run(engine):
    return [output.token_ids for output in engine.generate(PROMPTS, PARAMS)]


@pytest.fixture(scope="module")
def alone(target, good_draft):
    with Engine(config_of(target, draft_model=good_draft)) as one:
        return run(one)


@pytest.mark.parametrize(("t", "d"), SHARED)
def test_shared_ranks_write_the_same_text(engine, good_draft, alone, t, d):
    assert run(engine(draft_model=good_draft, **sizes(t, d))) == alone


@pytest.mark.parametrize(("t", "d"), DEDICATED)
def test_a_draft_with_ranks_of_its_own_writes_the_same_text(engine, good_draft, alone, t, d):
    assert run(engine(draft_model=good_draft, **sizes(t, d, "cpu"))) == alone


@pytest.mark.parametrize("shape", [{"attention_bias": True, "mlp_bias": True}, {"vocab_size": 97}])
def test_biases_and_odd_vocabularies(engine, tmp_path, shape):
    folder = make_checkpoint(tmp_path / "target", scale=3.0, **shape)
    texts = [run(engine(model=folder, **sizes(t, 1))) for t in (1, 2)]
    assert texts[0] == texts[1]


def test_a_draft_of_its_own_ranks_with_an_odd_vocabulary(engine, tmp_path):
    """Its logits are a part of what its ranks have."""
    folder = make_checkpoint(tmp_path / "target", scale=3.0, vocab_size=97)
    one = engine(model=folder, draft_model=folder, **sizes(1, 2, "cpu"))
    assert run(one) == run(engine(model=folder))


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral"])
def test_the_other_families(engine, tmp_path, family):
    folder = make_checkpoint(tmp_path / "target", family, scale=3.0, tie_word_embeddings=True)
    texts = [run(engine(model=folder, **sizes(t, 1))) for t in (1, 2)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("t", "d", "devices", "said"),
    [
        (3, 1, None, r"tensor_parallel_size is 3, but the target .* has 4 attention heads"),
        (4, 3, None, r"draft_tensor_parallel_size is 3, but the draft .* has 4 attention heads"),
        (2, 3, "cpu", r"draft_tensor_parallel_size is 3, but the draft .* has 4 attention heads"),
        (1, 2, None, r"draft_tensor_parallel_size is 2 but tensor_parallel_size is 1: .*devices"),
        (2, 1, "cpu,cpu", r"draft_devices names 2 devices for 1 ranks"),
    ],
)
def test_what_cannot_be_divided_is_refused(engine, good_draft, t, d, devices, said):
    before = psutil.Process().children()
    with pytest.raises(ConfigError, match=said):
        engine(draft_model=good_draft, **sizes(t, d, devices))
    assert psutil.Process().children() == before


@pytest.mark.parametrize(("t", "d", "devices"), [(2, 1, None), (2, 2, None), (1, 2, "cpu")])
def test_the_number_of_collective_calls(engine, good_draft, monkeypatch, t, d, devices):
    one = engine(draft_model=good_draft, num_speculative_tokens=3, **sizes(t, d, devices))
    calls = []
    for name in ("all_reduce", "gather"):
        real = getattr(SharedMemoryGroup, name)
        monkeypatch.setattr(
            SharedMemoryGroup, name, lambda *a, real=real, name=name: calls.append(name) or real(*a)
        )
    counted = {}
    for role, runner in (("target", one.target), ("draft", one.proposer.guesser.runner)):
        real = runner.forward

        def forward(*args, real=real, role=role):
            before = len(calls)
            answer = real(*args)
            counted.setdefault(role, set()).add(len(calls) - before)
            return answer

        monkeypatch.setattr(runner, "forward", forward)
    one.generate([PROMPTS[0]], SamplingParams(max_tokens=12, temperature=0))
    layers = one.target.config.num_layers
    assert counted["target"] == {collectives_a_forward(layers, t)}
    assert counted["draft"] == {collectives_a_forward(layers, d) if devices is None else 0}


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_cores_are_shared_out(count):
    cores = tuple(range(10, 10 + count))
    devices = (torch.device("cpu"),) * 2
    placement = Placement((0, 1), (), devices, cores)
    own = [placement.cores_of(rank) for rank in (0, 1)]
    assert own == [cores, cores] if count == 1 else own[0] + own[1] == cores


def test_ranks_are_pinned_to_their_cores(engine):
    before = os.sched_getaffinity(0)
    one = engine(**sizes(2, 1))
    placement = one.world.placement
    [other] = psutil.Process().children()
    assert os.sched_getaffinity(0) == set(placement.cores_of(0))
    assert set(other.cpu_affinity()) == set(placement.cores_of(1))
    one.shutdown()
    assert os.sched_getaffinity(0) == before


def test_kv_moves_on_every_rank(engine):
    runner = engine(**sizes(2, 1)).target
    logits_of(runner, PROMPTS[0][:2], [Query([0], 0, 2)])
    before = logits_of(runner, [7], [Query([0], 2, 1)])
    block_size = 16
    runner.move([0, 1], [block_size, block_size + 1])
    after = logits_of(runner, [7], [Query([1], 2, 1)])
    torch.testing.assert_close(after, before)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_each_rank_holds_what_the_formula_says(tmp_path, monkeypatch, family, size):
    without_kernels(monkeypatch)  # which keep a copy of their own in the place of weights
    bias = {"attention_bias": True, "mlp_bias": True} if family == "llama" else {}
    folder = make_checkpoint(tmp_path, family, vocab_size=98, **bias)
    config = read_model_config(folder)
    for rank in range(size):
        shard = Shard(rank, size)
        runner = ModelRunner(folder, config, torch.float32, torch.device("cpu"), shard)
        runner.allocate(num_blocks=3, block_size=8)
        held = sum(weight.numel() for weight in runner.model.parameters())
        assert held == weight_count(config, shard)
        kv_bytes = runner.cache.data.numel() * runner.cache.data.element_size()
        slots = 32  # whole groups of 16, with one slot at least that nobody reads
        assert kv_bytes * 8 == slots * runner.block_bytes(8)


def test_the_table_has_a_line_for_every_model_on_a_rank(target, good_draft):
    lines = footprint_lines(config_of(target, draft_model=good_draft, **sizes(2, 1)))
    assert [(line.rank, line.role) for line in lines] == [
        (0, "draft"),
        (0, "target"),
        (1, "target"),
    ]
    assert [line.collectives for line in lines] == [0, 6, 6]
    lines = footprint_lines(config_of(target, draft_model=good_draft, **sizes(1, 2, "cpu")))
    assert [(line.rank, line.role, line.collectives) for line in lines] == [
        (0, "target", 0),
        (1, "draft", 6),
        (2, "draft", 6),
    ]


# -- loss ------------------------------------------------------------------------------------------


@pytest.fixture
def service(target):
    one = EngineService(config_of(target, **sizes(2, 1)))
    yield one
    one.stop()


def other_rank(service):
    [process] = psutil.Process(service.pid).children()
    return process


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", ["engine", "rank"])
def test_a_lost_rank_is_noticed_and_leaves_nothing_behind(service, victim, signum):
    answers = [submit(service, "t1", LONG) for _ in range(6)]
    assert answers[0].begun.wait(WAIT_S)
    family = [psutil.Process(service.pid), other_rank(service)]
    os.kill(family[0].pid if victim == "engine" else family[1].pid, signum)
    start = time.monotonic()
    answers[-1].wait()
    assert time.monotonic() - start < NOTICED_S
    for answer in answers:
        answer.wait()
        assert answer.reason == "length" or isinstance(answer.errors[0], EngineDeadError)
    if victim == "rank":
        assert "Rank 1" in str(answers[-1].errors[0])
    gone, alive = psutil.wait_procs(family, NOTICED_S)
    assert gone
    assert not alive
    until(lambda: service.alive)
    assert submit(service, "t1").wait().reason == "length"


@pytest.mark.parametrize("rank", [1, 2])
def test_a_lost_rank_of_the_drafts_own_is_noticed(target, good_draft, rank):
    """The target has rank 0 alone, the draft 1 and 2."""
    one = EngineService(config_of(target, draft_model=good_draft, **sizes(1, 2, "cpu")))
    try:
        answer = submit(one, "t1", LONG)
        assert answer.begun.wait(WAIT_S)
        family = [psutil.Process(one.pid), *psutil.Process(one.pid).children()]
        family[rank].kill()
        answer.wait()
        assert isinstance(answer.errors[0], EngineDeadError)
        assert f"Rank {rank}" in str(answer.errors[0])
        assert not psutil.wait_procs(family, NOTICED_S)[1]
        until(lambda: one.alive)
        assert submit(one, "t1").wait().reason == "length"
    finally:
        one.stop()


def test_a_rank_lost_while_nothing_runs_is_noticed(service):
    pid = service.pid
    other_rank(service).kill()
    until(lambda: service.alive and service.pid != pid)
    assert submit(service, "t1").wait().reason == "length"


def test_ranks_leave_no_files_while_they_run(engine, monkeypatch):
    """Who is killed clears nothing away: what ranks met at goes as soon as they have met."""
    met = []
    real = world._meeting_place
    monkeypatch.setattr(world, "_meeting_place", lambda gpus: met.append(real(gpus)) or met[-1])
    one = engine(**sizes(2, 1))
    assert not Path(met[0].name).exists()
    assert one.generate(PROMPTS[0], SamplingParams(max_tokens=4))


def test_a_second_shutdown_does_nothing(engine):
    one = engine(**sizes(2, 1))
    one.shutdown()
    one.shutdown()
    assert not psutil.Process().children()


def test_a_lost_rank_in_this_process_is_an_error(target):
    one = Engine(config_of(target, **sizes(2, 1)))
    [rank] = psutil.Process().children()
    try:
        stream = one.stream(PROMPTS[0], SamplingParams(max_tokens=200))
        next(stream)
        rank.kill()
        with pytest.raises(EngineDeadError, match=r"Rank 1 ended with code -9"):
            list(stream)
    finally:
        one.world.close()
    assert not psutil.Process().children()
