"""The soak's account finds what does not add up."""

import asyncio
import inspect
import mmap
import os
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.soak import __main__, runs, shared_memory, traffic
from tools.soak.account import Account, troubles
from tools.soak.cores import cores_apart, on_cores
from tools.soak.health import Asked, too_slow
from tools.soak.reloads import kept
from tools.soak.runs import Result
from tools.soak.shared_memory import SharedMemory
from tools.soak.traffic import Ends
from tools.soak.watch import OF_LOADS_MIB, ONCE_MIB, Sample, trend


def ends(left_begun=0, **counts):
    made = Ends()
    made.counts.update(counts)
    made.left_begun = left_begun
    return made


def server(busy=0.0, restarts=0, **outcomes):
    return Account(outcomes, busy, 0, restarts)


@pytest.mark.parametrize(
    ("clients", "counted"),
    [
        (ends(length=5, invalid=2), server(length=5, invalid=2)),
        (ends(length=5, left=4, left_begun=2), server(length=6, abort=2)),  # one never arrived
        (ends(left=3, left_begun=3), server(abort=1, stop=1, queue_full=1)),
    ],
)
def test_what_adds_up(clients, counted):
    assert troubles(clients, counted) == []


@pytest.mark.parametrize(
    ("clients", "counted", "said"),
    [
        (ends(length=5), server(length=4), "1 more answers 'length'"),
        (ends(length=5), server(length=6), "counted 1 more ends"),
        (ends(invalid=1, left=1), server(invalid=2), "1 more 'invalid'"),
        (ends(left=2, left_begun=2), server(abort=1), "counted 1 more ends"),
        (ends(length=1), server(length=1, busy=0.5), "not idle"),
        (ends(length=1), server(length=1, restarts=1), "started again"),
        (ends(left=1), server(engine_lost=1), "'engine_lost'"),
        (ends(left=1), server(internal=1), "'internal'"),
    ],
)
def test_what_does_not(clients, counted, said):
    (found, *_) = troubles(clients, counted)
    assert said in found


def test_what_loads_leave_behind_is_seen():
    noise = [{"open files": 20 + number % 2, "threads": 9 + number} for number in (0, 1, 0, 1)]
    assert kept(noise) == []
    leak = [{"open files": 20, "threads": 9 + number} for number in range(4)]
    assert kept(leak) == ["Triton has 3 more threads than behind the first of 4 unloads."]


def test_what_is_killed_is_told_from_what_ends_by_itself():
    lost = ends(length=5, engine_lost=2, left=1), server(length=5, engine_lost=3, restarts=1)
    assert troubles(*lost, kills=1) == []
    assert "killed 0" in troubles(*lost)[0]
    assert "killed 2" in troubles(*lost, kills=2)[0]
    missing = ends(engine_lost=2), server(engine_lost=1, restarts=1)
    assert "1 more answers 'engine_lost'" in troubles(*missing, kills=1)[0]
    gone = server(length=5, engine_lost=3, restarts=1)._replace(up=False)
    assert "takes no requests" in troubles(lost[0], gone, kills=1)[0]


def test_memory_that_grows_is_told_from_memory_that_is_taken_once():
    taken = [Sample(second, 100.0 if second < 20 else 400.0) for second in range(100)]
    grows = [Sample(second, 300.0 + second) for second in range(100)]
    assert trend(taken).is_flat()
    assert trend(taken).growth_mib == pytest.approx(0)
    assert not trend(grows).is_flat()
    assert trend(grows).growth_mib == pytest.approx(49)


@pytest.mark.parametrize(
    ("rises", "by", "flat"),
    [
        ((), 30, True),
        ((80,), 30, True),
        ((5, 80), 30, True),
        ((60, 80), 30, False),
        ((80,), 99, False),
    ],
)
def test_memory_may_rise_once_however_late(rises, by, flat):
    """By what a larger step takes; what leaks with rare steps rises again."""
    risen = [float(by) * sum(at > one for one in rises) for at in range(100)]
    seen = [Sample(at, 300 + 0.01 * at + more) for at, more in enumerate(risen)]
    assert trend(seen, ONCE_MIB).is_flat() is flat
    assert trend(seen).is_flat() is (max(rises, default=0) < 50)


@pytest.mark.parametrize(("a_load", "flat"), [(0.05, True), (0.5, False)])
def test_loads_may_leave_next_to_nothing(a_load, flat):
    """Fifty of them."""
    found = trend([Sample(number, 40 + a_load * number) for number in range(50)])
    assert found.is_flat(OF_LOADS_MIB, share=0) is flat


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        ([1.0] * 80, ""),
        ([1.0] * 80 + [300.0], "1 times of 81"),
    ],
)
def test_health_that_is_told_late_is_noticed(ms, said):
    found = too_slow([Asked(one, 0.0) for one in ms])
    assert [said in sentence for sentence in found] == ([True] if said else [])


def test_a_wait_of_the_askers_own_is_not_the_servers():
    assert too_slow([Asked(300.0, 290.0)] * 50) == []


def test_a_server_and_its_clients_have_cores_of_their_own():
    here = os.sched_getaffinity(0)
    of_server, of_clients = cores_apart()
    assert len(of_clients) == 1 and (len(here) == 1 or not of_server & of_clients)
    tell = [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"]
    with on_cores(of_clients):
        told = subprocess.run(tell, capture_output=True, text=True, check=True).stdout
    assert {int(core) for core in told.split()} == of_clients
    assert os.sched_getaffinity(0) == here


def test_an_overload_comes_from_another_core_than_the_servers(monkeypatch):
    seen = {}

    @contextmanager
    def served(*_):
        seen["server"] = os.sched_getaffinity(0)
        yield SimpleNamespace(left=list, front=SimpleNamespace(endpoints=None))

    def run(*_):
        seen["clients"] = os.sched_getaffinity(0)
        return Result({}, server(), {}, {}, None, None, [], [], 0.0)

    monkeypatch.setattr(runs, "served", served)
    monkeypatch.setattr(runs, "_run", run)
    found = runs.overload("tandem", 10, 1)
    assert found.troubles == ["No request was refused.", "The server's health was never told."]
    assert (seen["server"], seen["clients"]) == cores_apart()


# -- what a run is, and what it leaves ---------------------------------------------------------

OURS, ANOTHER = "tandem-0123456789ab", "tandem-ba9876543210"
MAPPING = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    held = mmap.mmap(file.fileno(), 0)
print("held", flush=True)
sys.stdin.read()
"""
LOCKING = """
import multiprocessing, sys
lock = multiprocessing.get_context("spawn").Lock()
print("sem." + lock._semlock.name.strip("/"), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def shm(tmp_path, monkeypatch):
    """A folder in the place of /dev/shm."""
    monkeypatch.setattr(shared_memory, "SHM", tmp_path)
    monkeypatch.setattr(shared_memory, "PATIENCE_S", 0.5)
    monkeypatch.setattr(shared_memory, "LOOK_S", 0.05)
    return tmp_path


def made(folder, name):
    path = folder / name
    path.write_bytes(bytes(mmap.PAGESIZE))
    return path


@pytest.mark.parametrize("manner", ["read", "leave before"])
def test_who_ends_the_traffic_is_not_taken_for_a_client_that_leaves(manner):
    class Silent:
        @asynccontextmanager
        async def stream(self, prompt, params):
            await asyncio.sleep(60)
            yield

    async def run():
        ends = traffic.Ends()
        ask = traffic.Ask(True, "x", {}, manner, 60.0, 1)
        sending = asyncio.create_task(traffic.send(Silent(), ask, ends))
        await asyncio.sleep(0.05)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert not ends.total
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_refusals_that_come_late_are_noticed():
    found = ends(queue_full=90, length=10)
    found.refused_s = [0.01] * 80 + [0.3] * 10
    assert runs._not_in_time(found, 120) == []
    assert runs._not_in_time(found, 130) == ["Clients sent 100 requests of 130."]
    found.refused_s += [2.5]
    assert "A refusal took 0.01 s (the median), at most 2.50 s." in runs._not_in_time(found, 1)
    found.refused_s = [0.3] * 90
    assert "A refusal took 0.30 s (the median)" in runs._not_in_time(found, 1)[0]


def test_the_time_ends_a_soak_and_not_the_count():
    defaults = {
        name: one.default for name, one in inspect.signature(__main__.traffic).parameters.items()
    }
    assert defaults["minutes"] == 30
    a_second = defaults["requests"] / (60 * defaults["minutes"])
    assert 3 * 74 < a_second < 1000  # 74: of a run on two cores


def test_whatever_has_come_since_is_the_servers(shm):
    made(shm, "there before")
    shared = SharedMemory()
    assert not shared.left(OURS)
    new = {made(shm, name) for name in (f"{OURS}_region", "psm_1234", "sem.mp-1")}
    (shm / "tandem-x7w2k1qz").mkdir()
    made(shm, f"{ANOTHER}_region")
    assert shared.left(OURS) == new | {shm / "tandem-x7w2k1qz"}


def test_what_others_were_seen_to_hold_stays_theirs(shm):
    shared, path = SharedMemory(), made(shm, "psm_1234")
    unseen = made(shm, "psm_5678")
    command = [sys.executable, "-c", MAPPING, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        assert shared.entries(OURS) == {unseen}
    assert path.exists()
    assert shared.entries(OURS) == {unseen}


def test_what_others_hold_under_a_former_name_is_theirs():
    shared = SharedMemory()
    command = [sys.executable, "-c", LOCKING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        path = Path("/dev/shm") / other.stdout.readline().decode().strip()
        assert path.exists()
        assert path not in shared.entries(OURS)
        other.communicate(b"\n")
    assert not path.exists()


def test_what_our_own_processes_hold_is_ours(shm, monkeypatch):
    shared, path = SharedMemory(), made(shm, "psm_1234")
    command = [sys.executable, "-c", MAPPING, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as rank:
        monkeypatch.setattr(shared_memory, "members", lambda identity: [rank])
        assert rank.stdout.readline() == b"held\n"
        assert shared.entries(OURS) == {path}


def test_what_goes_in_time_was_not_left(shm):
    shared = SharedMemory()
    path = made(shm, "for a moment")
    command = [sys.executable, "-c", f"import os, time; time.sleep(0.1); os.remove({str(path)!r})"]
    with subprocess.Popen(command):
        assert not shared.left(OURS)
