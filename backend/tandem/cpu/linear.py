"""Linear layers by the kernels, and their weights as the kernels read them."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor, nn

from tandem.cpu.library import STORED, load_kernels
from tandem.cpu.memory import give_back, zeros
from tandem.cpu.structures import Matrix
from tandem.models.layers import Linear


class KernelLinear:
    """y = x Wᵀ + b, the weight read once for all rows."""

    def __init__(
        self,
        kernels: ctypes.CDLL,
        weight: Tensor,
        bias: Tensor | None,
        memory: Tensor | None = None,
        gated: bool = False,
    ) -> None:
        """memory [packed_size(weight)] is where the kernels' copy of the weight goes; gated: as of
        `Linear`."""
        self._multiply = kernels.tandem_multiply
        if memory is None:
            memory = zeros([packed_size(kernels, weight, weight.dtype, gated)], weight.dtype)
        source, bfloat = weight.detach().contiguous(), weight.dtype == torch.bfloat16
        kernels.tandem_pack(source.data_ptr(), *weight.shape, bfloat, gated, memory.data_ptr())
        self.bias = None if bias is None else bias.detach().float().contiguous()
        address = None if self.bias is None else self.bias.data_ptr()
        self.memory = memory
        self.matrix = Matrix(memory.data_ptr(), address, *weight.shape, bfloat, gated)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., columns] to [..., rows], in the dtype of x."""
        width, height = self.matrix.columns, self.matrix.rows
        if x.shape[-1] != width:
            raise ValueError(f"x has {x.shape[-1]} columns, the weight {width}")
        floats = x.float().contiguous()
        y = torch.empty(*x.shape[:-1], height)
        count, threads = floats.numel() // width, torch.get_num_threads()
        self._multiply(self.matrix, floats.data_ptr(), count, y.data_ptr(), threads)
        return y.to(x.dtype)


def use_kernels(model: nn.Module, stored: torch.dtype) -> None:
    """Has a CPU model's linear layers run by the kernels, where there are any. Their weights move
    to where they are read fast, in the format `stored`."""
    kernels = load_kernels()
    if kernels is None or stored not in STORED:
        return
    found = [one for one in model.modules() if isinstance(one, Linear) and one.kernel is None]
    sizes = [packed_size(kernels, one.weight, stored, one.gated) for one in found]
    parts = zeros([sum(sizes)], stored).split(sizes)
    for module, part in zip(found, parts, strict=True):
        weight = module.weight.data.to(stored)
        module.kernel = KernelLinear(kernels, weight, module.bias, part, module.gated)
        module.weight.data = torch.empty(0)
    give_back()


def packed_size(kernels: ctypes.CDLL, weight: Tensor, stored: torch.dtype, gated: bool) -> int:
    """Numbers in the kernels' copy of a weight."""
    size: int = kernels.tandem_packed(*weight.shape, stored == torch.bfloat16, gated)
    return size
