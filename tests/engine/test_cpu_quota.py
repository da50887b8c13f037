"""Of a machine's cores, those that a container may keep busy."""

import os

import pytest
import torch

from tandem.assembly import enter
from tandem.control_groups import cpu_quota
from tandem.doctor.machine import examine_machine
from tandem.runners.placement import Placement, place
from tandem.runners.rank import pin
from tandem.vllm.arguments import environment
from tandem.vllm.starts import CORES
from tests.engine.sinks import config_of

V2, V1 = ("0::/a/b", "a/b", "a"), ("4:cpu,cpuacct:/x/y", "cpu,cpuacct/x/y", "cpu,cpuacct")


@pytest.fixture
def quota(tmp_path):
    """Writes files of control groups; returns what the process's own and those around it leave."""

    def read(line, *files):
        (tmp_path / "own").write_text(f"9:name=systemd:/\n{line}\n")
        for path, content in files:
            file = tmp_path / "groups" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{content}\n")
        return cpu_quota(tmp_path / "groups", tmp_path / "own")

    return read


@pytest.mark.parametrize(
    ("allowed", "cores"),
    [("400000 100000", 4), ("390000 100000", 3), ("50000 100000", 1), ("max 100000", None)],
)
def test_a_containers_quota_is_rounded_down(quota, allowed, cores):
    assert quota("0::/", ("cpu.max", allowed)) == cores


@pytest.mark.parametrize(
    ("allowed", "period", "cores"), [(250000, 100000, 2), (30000, 10000, 3), (-1, 100000, None)]
)
def test_groups_of_the_first_version(quota, allowed, period, cores):
    line, inner, _ = V1
    files = (f"{inner}/cpu.cfs_quota_us", allowed), (f"{inner}/cpu.cfs_period_us", period)
    assert quota(line, *files) == cores


def test_the_least_of_the_groups_around_it_counts(quota):
    line, inner, outer = V2
    files = (f"{inner}/cpu.max", "800000 100000"), (f"{outer}/cpu.max", "200000 100000")
    assert quota(line, *files) == 2


def test_within_a_container_the_path_is_that_of_the_machine(quota):
    line, _, outer = V1
    files = (f"{outer}/cpu.cfs_quota_us", 500000), (f"{outer}/cpu.cfs_period_us", 100000)
    assert quota(line, *files) == 5


@pytest.mark.parametrize("line", ["0::/nowhere", "3:memory:/", "4:cpu:/"])
def test_without_a_quota_there_is_none(quota, line):
    assert quota(line, ("memory/cpu.max", "100000 100000"), ("cpu/cpu.cfs_quota_us", "x")) is None


@pytest.fixture
def limited(monkeypatch):
    """Sets the quota that is read."""

    def limit(cores):
        for reader in ("runners.placement", "vllm.arguments", "doctor.machine"):
            monkeypatch.setattr(f"tandem.{reader}.cpu_quota", lambda: cores)

    return limit


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.parametrize(
    ("cores", "threads", "of_ranks"),
    [
        (None, None, [4, 4]),
        (5, None, [2, 2]),
        (1, None, [1, 1]),
        (64, None, [4, 4]),
        (2, 6, [3, 3]),
    ],
)
def test_ranks_share_the_quota_but_keep_their_cores(
    target, limited, eight_cores, cores, threads, of_ranks
):
    limited(cores)
    found = place(config_of(target, tensor_parallel_size=2, num_threads=threads))
    assert [found.threads_of(rank) for rank in (0, 1)] == of_ranks
    assert found.cores == tuple(range(threads or 8))


def test_vllm_is_bound_to_as_many_cores(target, limited, eight_cores):
    limited(3)
    bound = {
        threads: environment(config_of(target, num_threads=threads), on_cpu=True)
        for threads in (None, 5)
    }
    assert (bound[None][CORES], bound[5][CORES]) == ("0,1,2", "0,1,2,3,4")


@pytest.mark.parametrize(
    ("cores", "threads", "taken"), [(None, None, 3), (2, None, 2), (9, None, 3), (2, 4, 4)]
)
def test_an_engine_takes_as_many_threads(target, limited, cores, threads, taken):
    limited(cores)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        config = config_of(target, num_threads=threads)
        enter(config, place(config))
        assert torch.get_num_threads() == taken
    finally:
        torch.set_num_threads(before)


def test_a_rank_keeps_its_cores_with_fewer_threads():
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    placement = Placement((0,), (), (torch.device("cpu"),), tuple(cores), quota=1)
    try:
        torch.set_num_threads(2)
        pin(placement, 0)
        assert (os.sched_getaffinity(0), torch.get_num_threads()) == (cores, 1)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("cores", "said"),
    [(None, "8 cores that|8 cores without"), (8, "8 cores that|8 cores without"), (3, "leaves 3")],
)
def test_the_doctor_tells_of_it(limited, eight_cores, cores, said):
    limited(cores)
    processor = next(examine_machine())
    assert any(words in processor.text for words in said.split("|")), processor
