"""Compiles the kernels for this processor, once, and loads them."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tandem.cpu.structures import Matrix, Model, Step

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS: tuple[str, ...] = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math")
FLAGS += ("-ffp-contract=off", "-std=c++17", "-fPIC", "-fopenmp")


@cache
def load_kernels() -> ctypes.CDLL | None:
    """The library; None, with a word in the log, where it cannot be built."""
    compiler = shutil.which("g++")
    if compiler is None:
        logger.warning("No g++ on this machine: a step on the CPU takes longer. Install it.")
        return None
    try:
        library = ctypes.CDLL(str(_built(compiler)))
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        logger.warning("The CPU kernels cannot be built, a step takes longer: %s", said)
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int
    matrix, model, step = (ctypes.POINTER(kind) for kind in (Matrix, Model, Step))
    library.tandem_space.restype = pointer
    library.tandem_release.argtypes = (pointer,)
    library.tandem_forward.argtypes = (model, step, pointer, number)
    library.tandem_multiply.argtypes = (matrix, pointer, number, pointer, number, number)
    for name in ("tandem_release", "tandem_forward", "tandem_multiply"):
        getattr(library, name).restype = None
    return library


def _built(compiler: str) -> Path:
    """The library's file in the user's cache, made when it is not there yet."""
    path = _cache_folder() / f"kernels-{_key(compiler)}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            compiled, linked = Path(folder, "kernels.o"), Path(folder, "kernels.so")
            _run(compiler, *FLAGS, "-c", str(SOURCE), "-o", str(compiled))
            # Linked without OpenMP: the calls find torch's, whose threads are running already.
            _run(compiler, "-shared", str(compiled), "-o", str(linked))
            linked.replace(path)  # at once, whoever else builds it
    return path


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem"


def _key(compiler: str) -> str:
    """Of what the library depends on: source, flags, compiler and the processor's features."""
    native = _run(compiler, "-march=native", "-Q", "--help=target")
    parts = (SOURCE.read_text(encoding="utf-8"), *FLAGS, _run(compiler, "--version"), native)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
