"""What a pass reads, in one stretch of memory: filled on the host, copied to the device at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNED = 16  # bytes at which each part begins
KINDS = {np.dtype(np.int64): torch.int64, np.dtype(np.int32): torch.int32}
KINDS |= {np.dtype(np.int8): torch.int8, np.dtype(np.float32): torch.float32}


class Part(NamedTuple):
    """Some numbers of one kind."""

    kind: np.dtype[Any]
    most: int


class Inputs:
    """Parts one after the other; the last one's length varies most, and only its beginning is
    copied."""

    def __init__(self, parts: Mapping[str, Part], device: torch.device) -> None:
        self._starts: dict[str, int] = {}
        size = 0
        for name, part in parts.items():
            self._starts[name] = size
            size += -(-part.most * part.kind.itemsize // ALIGNED) * ALIGNED
        on_gpu = device.type == "cuda"
        # pinned, or the copy would wait for the device
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=on_gpu)
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self._copied = torch.cuda.Event() if on_gpu else None
        self._arrays: dict[str, NDArray[Any]] = {}
        self.tensors: dict[str, Tensor] = {}
        """Each part on the device, as long as it can be."""
        for name, part in parts.items():
            start = self._starts[name]
            bytes_of = slice(start, start + part.most * part.kind.itemsize)
            self._arrays[name] = self._host[bytes_of].numpy().view(part.kind)
            self.tensors[name] = self._device[bytes_of].view(KINDS[part.kind])

    def copy(self, values: Mapping[str, object]) -> None:
        """Sends every part's numbers. Returns before they are there: what the device does next
        finds them."""
        if self._copied is not None:
            self._copied.synchronize()  # the last copy has read what is written over now
        end = 0
        for name, array in self._arrays.items():
            flat = np.asarray(values[name], array.dtype).reshape(-1)
            array[: len(flat)] = flat
            end = self._starts[name] + flat.nbytes
        self._device[:end].copy_(self._host[:end], non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self._device.device))
