"""Memory that is read fast: on pages of 2 MiB. With those of 4 KiB, translating addresses takes a
fifth of the time that reading weights takes, more on a virtual machine."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from contextlib import suppress
from math import prod

import torch
from torch import Tensor

PAGE = 2 << 20


def zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Like `torch.zeros`; it takes real memory page by page, when written to."""
    count = prod(shape)
    size = max(1, count) * dtype.itemsize
    memory = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # a system without large pages has others
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % PAGE
    return whole[start : start + size].view(dtype)[:count].view(*shape)


def give_back() -> None:
    """What was freed to the system, which glibc keeps otherwise: half the size of weights that were
    laid out anew."""
    with suppress(AttributeError, OSError):  # other libraries do not have it
        ctypes.CDLL(None).malloc_trim(0)
