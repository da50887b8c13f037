"""Processor, GPUs, shared memory and ports."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from tandem.control_groups import cpu_quota
from tandem.doctor.finding import Finding, failure, ok, warning
from tandem.free_memory import free_memory
from tandem.serving import ServingError
from tandem.serving.ports import Ports, choose_ports

_SHM: Final = Path("/dev/shm")
_SHM_NEEDED: Final = 64 << 20
_DEFAULT_PORTS: Final = Ports(8000, 8001, 8002)


def examine_machine() -> Iterator[Finding]:
    yield _processor()
    yield _kernels()
    yield _memory()
    yield from _gpus()
    yield _shared_memory()
    yield from _ports()


def _processor() -> Finding:
    from tandem.models.layers import computes_in

    cores = _cores()
    if computes_in("bfloat16"):
        return ok("cpu", f"{cores} that compute in bfloat16")
    return ok("cpu", f"{cores} without bfloat16: it computes in float32")


def _cores() -> str:
    """How many, and how many of them a container's quota leaves."""
    count, quota = len(os.sched_getaffinity(0)), cpu_quota()
    if quota is None or quota >= count:
        return f"{count} cores"
    return f"{count} cores (a quota leaves {quota}, the default of num_threads)"


def _kernels() -> Finding:
    from tandem.cpu.library import load_kernels

    if load_kernels() is not None:
        return ok("kernels", "compiled for this processor")
    return warning("kernels", "torch computes in their place, slower", "install g++")


def _memory() -> Finding:
    total = psutil.virtual_memory().total
    return ok("memory", f"{free_memory() / 2**30:.1f} of {total / 2**30:.1f} GiB free")


def _gpus() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            name = torch.cuda.get_device_name(index)
            yield ok("gpu", f"{name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free")
    elif Path("/dev/nvidia0").exists():
        build = "a CPU build" if torch.version.cuda is None else f"for CUDA {torch.version.cuda}"
        text = f"there is a GPU, but torch {torch.__version__} ({build}) cannot use it"
        yield warning("gpu", text, "install a build of torch for this GPU's driver")
    else:
        yield ok("gpu", "none: models run on the CPU")


def _shared_memory() -> Finding:
    if not os.access(_SHM, os.W_OK):
        return failure("shared memory", f"{_SHM} cannot be written", "mount a tmpfs there")
    free = shutil.disk_usage(_SHM).free
    text = f"{free / 2**20:.0f} MiB free in {_SHM}"
    if free < _SHM_NEEDED:
        remedy = "free some, or start the container with --shm-size=1g"
        return warning("shared memory", f"{text}, 64 MiB are little enough", remedy)
    return ok("shared memory", text)


def _ports() -> Iterator[Finding]:
    for name, port in _DEFAULT_PORTS._asdict().items():
        try:
            choose_ports("0.0.0.0", Ports(0, 0, 0)._replace(**{name: port}))
        except ServingError as error:
            yield warning("ports", str(error), "")
            return
    yield ok("ports", ", ".join(f"{port}" for port in _DEFAULT_PORTS) + " are free")
