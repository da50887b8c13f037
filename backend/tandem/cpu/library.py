"""Compiles the kernels for this processor, once, and loads them."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch

from tandem.cpu.structures import Matrix, Model

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS: tuple[str, ...] = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math")
FLAGS += ("-ffp-contract=off", "-std=c++17", "-fPIC", "-fopenmp")
STORED = (torch.float32, torch.bfloat16)
WIDEST_HEAD = 1024


class Kernels(ctypes.CDLL):
    """The library."""

    tandem_forward: Callable[..., list[int]]
    tandem_chains: Callable[..., tuple[list[list[int]], list[Sequence[float]]]]
    tandem_verify: Callable[..., tuple[list[int], list[int]]]
    """These take and make Python's objects, and give up its lock by themselves."""


@cache
def load_kernels() -> Kernels | None:
    """The library; None, with a word in the log, where it cannot be built."""
    try:
        # torch's OpenMP, which the library calls, was loaded with torch.
        library = Kernels(str(_built()))
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        logger.warning("There are no CPU kernels, a step takes longer: %s", said)
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int
    matrix, model = ctypes.POINTER(Matrix), ctypes.POINTER(Model)
    packed = ctypes.c_char_p
    library.tandem_space.restype = pointer
    library.tandem_release.argtypes = (pointer,)
    library.tandem_want.argtypes = (pointer, packed, number)
    library.tandem_move.argtypes = (model, packed, number)
    library.tandem_multiply.argtypes = (matrix, pointer, number, pointer, number)
    library.tandem_eights.restype = number
    library.tandem_packed.argtypes = (number, number, number, number, number)
    library.tandem_packed.restype = ctypes.c_int64
    library.tandem_pack.argtypes = (pointer, number, number, number, number, number, pointer)
    library.tandem_penalize.argtypes = (pointer, number, number, packed, pointer, pointer, number)
    library.tandem_limit.argtypes = (pointer, number, number, packed, pointer, number)
    library.tandem_judge.argtypes = (pointer, number, number, packed, pointer, ctypes.c_uint64)
    library.tandem_judge.argtypes += (pointer, pointer, number)
    for name in ("release", "want", "move", "multiply", "pack"):
        getattr(library, f"tandem_{name}").restype = None
    for name in ("penalize", "limit", "judge"):
        getattr(library, f"tandem_{name}").restype = None
    some = ctypes.py_object
    forward = ctypes.PYFUNCTYPE(some, pointer, some, some, pointer, pointer, some)
    chains = ctypes.PYFUNCTYPE(some, pointer, some, some, some, some, pointer)
    library.tandem_forward = forward(("tandem_forward", library))
    library.tandem_chains = chains(("tandem_chains", library))
    verify = ctypes.PYFUNCTYPE(
        some, pointer, number, number, some, pointer, ctypes.c_uint64, number
    )
    library.tandem_verify = verify(("tandem_verify", library))
    return library


def has_kernels(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether a whole model runs by the kernels."""
    fits = device.type == "cpu" and dtype in STORED and head_dim <= WIDEST_HEAD
    fits = fits and head_dim % 2 == 0  # rotated by halves, and stored by words of two columns
    return fits and load_kernels() is not None


def _built() -> Path:
    """The library's file in the user's cache, made when it is not there yet."""
    path = _cache_folder() / f"kernels-{_key()}.so"
    if not path.exists():
        compiler = shutil.which("g++")
        if compiler is None:
            raise FileNotFoundError("no g++ on this machine, install it")
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            compiled, linked = Path(folder, "kernels.o"), Path(folder, "kernels.so")
            _run(compiler, *FLAGS, "-c", str(SOURCE), "-o", str(compiled))
            # Linked without OpenMP: the calls find torch's, whose threads are running already.
            # Python's functions are found in the process, or it does not load.
            _run(compiler, "-shared", "-Wl,-z,now", str(compiled), "-o", str(linked))
            linked.replace(path)  # at once, whoever else builds it
    return path


def _cache_folder() -> Path:
    """The user's; a new one for this process, where that cannot be written."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(base, "tandem")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):  # RuntimeError: this user has no home
        return Path(tempfile.mkdtemp(prefix="tandem-"))


def _key() -> str:
    """Of what the library depends on: its source, and the processor that it is compiled for."""
    processor = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    features = {line for line in processor.splitlines() if line[:5] in ("flags", "model", "Featu")}
    sources = [SOURCE, *sorted(SOURCE.parent.glob("*.h"))]
    parts = (*(one.read_text(encoding="utf-8") for one in sources), *FLAGS, *sorted(features))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
