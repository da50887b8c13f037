"""Exchange between ranks of one host, here threads."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from tandem.runners.groups import SLOT_BYTES, RankLostError, SharedMemoryGroup, group_file_bytes
from tandem.runners.rank import Rank


@pytest.fixture(autouse=True)
def brisk_threads():
    """Threads that wait for each other hand over the interpreter at once."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture
def everywhere(tmp_path):
    """Runs a function of (rank, group) on every rank; the results in order of ranks."""

    def run(size, function):
        file = tmp_path / "group"
        with file.open("wb") as opened:
            opened.truncate(group_file_bytes(size))
        groups = [SharedMemoryGroup(file, rank, size, lambda: False) for rank in range(size)]
        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(function, range(size), groups))

    return run


def numbers(rank, count, dtype=torch.float32):
    return torch.randn(count, generator=torch.Generator().manual_seed(rank)).to(dtype)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_ranks_get_the_same_sum(everywhere, size, dtype):
    def work(rank, group):
        sums = []
        for count in (1, 7, SLOT_BYTES // dtype.itemsize, 2 * SLOT_BYTES // dtype.itemsize + 5):
            x = numbers(rank, count, dtype)
            group.all_reduce(x)
            sums.append(x)
        return sums

    results = everywhere(size, work)
    for one in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(one, results[0], strict=True))
    wanted = sum(numbers(rank, 7, dtype).float() for rank in range(size))
    torch.testing.assert_close(results[0][1].float(), wanted, rtol=2e-2, atol=2e-2)


def test_the_first_rank_gathers_in_order(everywhere):
    count = SLOT_BYTES // 4 + 3

    def work(rank, group):
        return group.gather(torch.full((count,), float(rank)))

    first, *others = everywhere(3, work)
    assert [part.unique().tolist() for part in first] == [[0.0], [1.0], [2.0]]
    assert others == [None, None]


def test_the_last_rank_passes_on_to_the_first(everywhere):
    def work(rank, group):
        x = torch.full((5, 7), float(rank))
        group.pass_on(x)
        return x[0, 0].item()

    assert everywhere(2, work) == [1.0, 1.0]


def test_a_fast_rank_never_overwrites_what_a_slow_one_reads(everywhere):
    def work(rank, group):
        sums = []
        for turn in range(100):
            x = torch.full((64,), float(turn * (rank + 1)))
            group.all_reduce(x)
            sums.append(x[0].item())
        return sums

    for sums in everywhere(2, work):
        assert sums == [3.0 * turn for turn in range(100)]


def test_a_lost_rank_ends_the_wait(tmp_path):
    file = tmp_path / "group"
    file.write_bytes(bytes(group_file_bytes(2)))
    with pytest.raises(RankLostError):
        SharedMemoryGroup(file, 0, 2, lambda: True).all_reduce(torch.ones(3))


def test_a_rank_that_has_left_may_meet_others_again(tmp_path):
    for name in ("first", "second"):
        dist.init_process_group(
            "gloo", init_method=f"file://{tmp_path / name}", rank=0, world_size=1
        )
        Rank.leave()
        assert not dist.is_initialized()
    Rank.leave()  # nor does it matter twice
