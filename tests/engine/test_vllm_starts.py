"""What vLLM's processes have that are forked, as if they were spawned."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem import EngineConfig
from tandem.vllm import checks, starts

CHILD = """
import ctypes, os, sys
from tandem.vllm.starts import METHOD, _Context, _take_cores

def say_environment(path):
    with open(path, "w") as file:
        print(os.environ.get("LATER"), os.environ.get("GONE"), os.environ[METHOD], file=file)

def say_places(team_of_one=False):
    import torch
    _take_cores(1)
    if team_of_one:
        libraries = open("/proc/self/maps").read().split()
        [openmp] = {name for name in libraries if "libgomp" in name}
        body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
        ctypes.CDLL(openmp).GOMP_parallel(body, None, 1, 0)
    for _ in range(3):
        torch.ones(1 << 20).add_(1)
    places = [sorted(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")]
    print(torch.get_num_threads(), os.sched_getaffinity(0), sorted(places))
"""


def run(tmp_path, body, **environment):
    """What a process prints that has CHILD, and this at its end."""
    script = tmp_path / "child.py"
    script.write_text(CHILD + 'if __name__ == "__main__":\n    ' + body + "\n")
    command = [sys.executable, str(script)]
    given = {**os.environ, **environment}
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_the_environment_is_that_of_who_starts_it(tmp_path):
    """A fork server has the one that it was started with."""
    said = tmp_path / "said"
    body = (
        f"_Context().Process(target=print).start(); os.environ['LATER'] = 'set'; "
        f"del os.environ['GONE']; "
        f"one = _Context().Process(target=say_environment, args=({str(said)!r},)); "
        f"one.start(); one.join()"
    )
    run(tmp_path, body, GONE="not yet")
    assert said.read_text().split() == ["set", "None", "fork"]


@pytest.mark.parametrize("team_of_one", [False, True])
def test_each_thread_of_a_rank_is_bound_to_a_core_of_it(tmp_path, team_of_one):
    """And stays where it is if a team of one, which needs no other, comes between two others."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    named = ",".join(map(str, cores))
    said = run(tmp_path, f"say_places({team_of_one})", **{starts.CORES: f"7|{named}"})
    assert said.startswith(f"{len(cores)} {{{cores[0]}}} ")
    assert all(f"[{core}]" in said for core in cores)


@pytest.mark.parametrize(("method", "begun"), [("fork", ["parent", 3]), ("spawn", [])])
def test_a_rank_that_is_spawned_binds_itself(monkeypatch, method, begun):
    calls = []
    monkeypatch.setattr(starts, "die_with_parent", lambda: calls.append("parent"))
    monkeypatch.setattr(starts, "_take_cores", calls.append)
    monkeypatch.setenv(starts.METHOD, method)
    main = starts._beginning(lambda *args, **kwargs: calls.append((args, kwargs)))
    main(1, local_rank=3)
    assert calls == [*begun, ((1,), {"local_rank": 3})]


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder with a torch and a vLLM that bring libraries."""
    for file in ("torch/lib/libgomp.so.1", "torch.libs/libgomp-0a1b.so.1", "vllm/libs/x"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    folders = {name: tmp_path / name for name in ("torch", "vllm")}
    monkeypatch.setattr(starts, "_folder", folders.__getitem__)
    monkeypatch.delenv(starts.PRELOADED, raising=False)
    return tmp_path


def preloaded():
    return starts._read_when_loaded()[starts.PRELOADED]


def test_libraries_are_those_that_vllm_would_load(packages, monkeypatch):
    gomp = f"{packages}/torch.libs/libgomp-0a1b.so.1"
    assert preloaded() == gomp
    allocator = packages / "vllm/libs/libtcmalloc_minimal.so.4"
    allocator.touch()
    assert preloaded() == f"{allocator}:{gomp}"
    monkeypatch.setenv(starts.PRELOADED, "/opt/libiomp5.so")
    assert preloaded() == f"{allocator}:/opt/libiomp5.so"
    monkeypatch.setenv(starts.PRELOADED, "/opt/libtcmalloc.so:/opt/libx.so")
    assert preloaded() == f"/opt/libtcmalloc.so:/opt/libx.so:{gomp}"


def test_without_any_library_none_is_named(packages):
    for file in packages.glob("torch*/**/libgomp*"):
        file.unlink()
    assert preloaded() == ""


@pytest.mark.parametrize(
    ("on_cpu", "arguments", "forks"),
    [
        (True, {}, True),
        (True, {"numa_bind": True}, False),
        (True, {"mm_tensor_ipc": "torch_shm"}, False),
        (False, {}, False),
    ],
)
def test_only_on_cpus_processes_are_forked_unless_they_must_be_spawned(
    monkeypatch, on_cpu, arguments, forks
):
    done = []
    monkeypatch.setattr(checks, "prepare", lambda config: on_cpu)
    monkeypatch.setattr(checks, "check_seams", lambda config: done.append("imported"))
    monkeypatch.setattr(starts, "import_ahead", lambda: done.append("ahead"))
    monkeypatch.setattr(starts, "fork_core", lambda: done.append("forks"))
    config = EngineConfig(engine="vllm", model="target", vllm_engine_args=arguments)
    assert checks.load(config) is on_cpu
    assert done == (["ahead", "imported", "forks"] if forks else ["imported"])


@pytest.mark.parametrize(
    ("cores", "method"),
    [("0", "fork"), ("0,1", "fork"), ("0|1,2", "fork"), ("0,1,2", "spawn"), ("0|1,2,3", "spawn")],
)
def test_ranks_of_more_than_two_cores_are_spawned(monkeypatch, cores, method):
    """Of a larger team OpenMP ends threads, and makes others, which nothing else would bind."""
    monkeypatch.setenv(starts.CORES, cores)
    assert starts._method_of_ranks() == method


def test_folders_are_those_of_packages_that_are_installed():
    assert starts._folder("pytest") == Path(pytest.__file__).parent
