"""What a container leaves of the machine's memory, and what GPUs have left."""

from multiprocessing import Pipe
from types import SimpleNamespace

import psutil
import pytest
import torch

from tandem import EngineConfig, assembly
from tandem.errors import ConfigError
from tandem.free_memory import free_memory
from tandem.kv_cache import CPU_KV_SHARE, cpu_kv_memory
from tandem.runners import rank_worker
from tandem.runners.commands import Done, Load, Room
from tandem.runners.placement import Placement
from tandem.runners.world import RankProcess, World

MIB = 1 << 20
GPUS = torch.device("cuda:0"), torch.device("cuda:1")


@pytest.fixture
def group(tmp_path):
    """Writes a control group's files; returns what is free in the innermost."""

    def write(line, folder, **files):
        path = tmp_path / "groups" / folder
        path.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (path / name.replace("_", ".", 1)).write_text(f"{value}\n")
        (tmp_path / "own").write_text(f"{line}\n")
        return free_memory(tmp_path / "groups", tmp_path / "own")

    return write


def test_a_containers_limit_counts(group):
    assert group("0::/", "", memory_max=64 * MIB, memory_current=40 * MIB) == 24 * MIB


def test_pages_of_files_give_way(group):
    stat = f"anon {9 * MIB}\ninactive_file {10 * MIB}\nactive_file 5"
    found = group("0::/", "", memory_max=64 * MIB, memory_current=40 * MIB, memory_stat=stat)
    assert found == 34 * MIB


def test_the_limit_of_a_group_around_it_counts_too(group):
    group("0::/a/b", "a", memory_max=8 * MIB, memory_current=5 * MIB)
    assert group("0::/a/b", "a/b", memory_max="max", memory_current=5 * MIB) == 3 * MIB


def test_groups_of_the_first_version(group):
    files = {"memory_limit_in_bytes": 32 * MIB, "memory_usage_in_bytes": 30 * MIB}
    assert group("4:memory:/x", "memory/x", **files) == 2 * MIB


def test_where_more_is_used_than_allowed_nothing_is_free(group):
    assert group("0::/", "", memory_max=MIB, memory_current=2 * MIB) == 0


@pytest.mark.parametrize("line", ["0::/", "3:cpu:/", ""])
def test_without_a_limit_the_machines_memory_counts(group, line):
    found = group(line or "0::/nowhere", "", memory_max="max", memory_current=5)
    assert found == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_the_kv_cache_takes_its_share_of_it(monkeypatch):
    monkeypatch.setattr("tandem.kv_cache.free_memory", lambda: 100 * MIB)
    assert cpu_kv_memory(2) == int(100 * MIB * CPU_KV_SHARE) // 2


@pytest.fixture
def sized(monkeypatch):
    """The number of KV blocks of two GPUs, of which 10 of 100 bytes are kept."""
    config = EngineConfig(model="m", gpu_memory_utilization=0.9, block_size=1)
    placement = Placement((0, 1), (), GPUS, ())

    def size(own, other, block_bytes):
        monkeypatch.setattr(assembly, "room_of", lambda device: Room(own, 100))
        chosen = SimpleNamespace(placement=placement, max_model_len=1)
        world = SimpleNamespace(rooms={1: Room(other, 100)})
        return assembly.size_pool(config, chosen, block_bytes, world)

    return size


def test_the_gpu_that_has_least_room_for_its_part_decides(sized):
    assert sized(80, 30, {0: 1, 1: 1}) == 20
    assert sized(30, 80, {0: 1, 1: 1}) == 20
    assert sized(80, 30, {0: 10, 1: 1}) == 7
    assert sized(80, 30, {0: 1, 1: 10}) == 2
    with pytest.raises(ConfigError, match=r"\(0 bytes; .*kv_cache_memory to 3 or more"):
        sized(80, 5, {0: 3, 1: 1})


def test_a_rank_has_the_blocks_of_all_models_that_it_has_a_part_in():
    target, draft = (SimpleNamespace(block_bytes=lambda _, size=size: size) for size in (5, 3))
    apart = assembly.bytes_a_block([((0, 1), target), ((2,), draft)], 16)
    assert apart == {0: 5, 1: 5, 2: 3}
    assert assembly.bytes_a_block([((0, 1), target), ((0,), draft)], 16) == {0: 8, 1: 5}


def test_ranks_say_what_their_gpus_have_left(monkeypatch):
    mine, theirs = Pipe()
    monkeypatch.setattr(World, "__init__", lambda self: None)
    world = World()
    world.rooms, world._others = {}, {1: RankProcess.__new__(RankProcess)}
    world._others[1].commands = mine
    for room in (Room(30, 100), None):
        theirs.send(Done(room))
        world.wait_done([0, 1])
        assert world.rooms == {1: room}


def test_a_rank_says_it_behind_what_it_was_told(monkeypatch):
    monkeypatch.setattr(rank_worker, "room_of", lambda device: Room(30, device))
    worker = rank_worker._Worker(None)
    worker.rank = SimpleNamespace(device=100, load=lambda *_: None)
    assert worker._prepare(Load("target", None, None, torch.float32)) == Done(Room(30, 100))
