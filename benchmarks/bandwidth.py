"""What this machine reads from memory, with nothing to compute."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import torch

from tandem.cpu.memory import zeros

BYTES = 1 << 30
"""Twice as much as the largest caches hold."""
SOURCE = Path(__file__).with_name("read.cpp")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")


class Reader:
    """Reads 1 GiB, on large pages as the weights are, by all threads."""

    def __init__(self, threads: int) -> None:
        """Raises `FileNotFoundError` without a compiler."""
        compiler = shutil.which("g++")
        if compiler is None:
            raise FileNotFoundError("g++, which the benchmarks need, is not installed.")
        with tempfile.TemporaryDirectory() as folder:
            built = Path(folder, "read.so")
            subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(built)], check=True)
            self._read = ctypes.CDLL(str(built)).read_all
        self._read.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int)
        self._read.restype = ctypes.c_uint64
        self._data = zeros([BYTES // 4], torch.float32).fill_(1.0)
        self._threads = threads

    def seconds(self) -> float:
        """Of one reading, requested into the first cache or the second, whichever is faster: that
        differs from processor to processor."""
        return min(self._seconds(first_cache=True), self._seconds(first_cache=False))

    def _seconds(self, first_cache: bool) -> float:
        start = time.perf_counter()
        self._read(self._data.data_ptr(), BYTES, self._threads, first_cache)
        return time.perf_counter() - start
