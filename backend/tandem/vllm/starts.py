"""How vLLM's processes start on CPUs: forked from one that has imported vLLM.

By itself vLLM spawns its engine core there, and the core its ranks, and each imports vLLM for 6 to
12 s of a core, one behind the other. Now a fork server imports it at the same time as the engine's
process, and the core is forked from that. Ranks of one or two cores are forked from the core, and
given their cores when they begin. Ranks of more are spawned: OpenMP ends threads, and makes others
later, which only it can bind, and it reads where to when it is loaded.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from itertools import islice
from multiprocessing import context, forkserver
from pathlib import Path
from typing import Any

from tandem.killing import die_with_parent
from tandem.leftovers import SCRATCH
from tandem.vllm.seams import Seam, troubles

logger = logging.getLogger(__name__)

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
CORES = "VLLM_CPU_OMP_THREADS_BIND"
"""Names the cores of all ranks: those of one as numbers with commas, and a bar between two."""
PRELOADED = "LD_PRELOAD"
CORE = Seam("vllm.v1.engine.utils", "get_mp_context", ())
RANK = Seam("vllm.v1.executor.multiproc_executor", "WorkerProc.worker_main", ())
SEAMS = (CORE, RANK)
_MOST_CORES = 2
"""Of a forked rank: libgomp ends threads where a team of several is smaller than the one before,
which one of two never is."""
_SHARE = 1 << 16
"""Numbers a thread: more than torch gives to one of several."""


class _Process(context.ForkServerProcess):
    """Has the environment of who starts it, and not only of who started the fork server."""

    def start(self) -> None:
        self._environment = {**os.environ, METHOD: _method_of_ranks()}
        super().start()

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


def _method_of_ranks() -> str:
    ranks = os.environ.get(CORES, "").split("|")
    return "fork" if max(len(rank.split(",")) for rank in ranks) <= _MOST_CORES else "spawn"


class _Context(context.ForkServerContext):
    Process = _Process


def import_ahead() -> None:
    """Starts the fork server: it imports vLLM while its caller does."""
    os.environ.update(_read_when_loaded())
    multiprocessing.set_forkserver_preload(["tandem.vllm.imported"])
    forkserver.ensure_running()


def _read_when_loaded() -> dict[str, str]:
    """What vLLM sets for the processes that it spawns on CPUs, of what is read when libraries are
    loaded (`CpuPlatform.check_and_update_config` of vLLM 0.32)."""
    torch, vllm = (_folder(name) for name in ("torch", "vllm"))
    given = os.environ.get(PRELOADED, "")
    chosen = [given] if given else []
    if not any(name in given for name in ("libomp", "libgomp", "libiomp")):
        chosen += _first(torch.parent / "torch.libs", torch / "lib", name="libgomp")
    if "libtcmalloc" not in given:
        chosen = [*_first(vllm / "libs", name="libtcmalloc"), *chosen]
    compilers = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1"}
    return compilers | {PRELOADED: ":".join(chosen)}


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _first(*folders: Path, name: str) -> list[str]:
    """The library of this name that is found first, if there is one."""
    found = (str(file) for folder in folders for file in folder.glob(f"{name}*.so*"))
    return list(islice(found, 1))


def fork_core() -> None:
    """Has the engine core that this process starts forked from the fork server."""
    CORE.replace(lambda original: _Context)


def register() -> None:
    """The entry point: a rank that is forked from this process loads no plug-ins, and begins with
    what they do in a process of its own."""
    if SCRATCH not in os.environ:
        return  # a vLLM that we have not started
    wrong = troubles(SEAMS)
    if wrong:
        logger.error("vLLM's ranks are not given their cores: %s.", "; ".join(wrong))
        return
    RANK.replace(_beginning)


def _beginning(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def worker_main(*args: Any, **kwargs: Any) -> None:
        if os.environ.get(METHOD) == "fork":
            die_with_parent()
            _take_cores(kwargs["local_rank"])
        original(*args, **kwargs)

    return worker_main


def _take_cores(local_rank: int) -> None:
    """Binds a rank's threads, one to each of its cores, as OpenMP would have done by itself, had it
    been told before it was loaded. Threads that wander took a third of the speed."""
    import torch

    of_rank = os.environ[CORES].split("|")[local_rank]
    first, *others = (int(core) for core in of_rank.split(","))
    torch.set_num_threads(1 + len(others))  # a thread of its own, that is not OpenMP's, comes here
    before = _threads()
    torch.ones((1 + len(others)) * _SHARE).add_(1)
    for thread, core in zip(sorted(_threads() - before), others, strict=False):
        os.sched_setaffinity(thread, [core])
    os.sched_setaffinity(0, [first])


def _threads() -> set[int]:
    return {int(thread) for thread in os.listdir("/proc/self/task")}
