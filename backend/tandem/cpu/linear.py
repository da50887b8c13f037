"""Linear layers by the kernels, and their weights as the kernels read them."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor, nn

from tandem.cpu.library import STORED, load_kernels
from tandem.cpu.memory import give_back, zeros
from tandem.cpu.structures import Matrix
from tandem.models.layers import Linear

EXPONENT_BIAS = 127  # of a float


class KernelLinear:
    """y = x Wᵀ + b, the weight read once for all rows."""

    def __init__(
        self,
        kernels: ctypes.CDLL,
        weight: Tensor,
        bias: Tensor | None,
        memory: Tensor | None = None,
        gated: bool = False,
        eights: bool = False,
    ) -> None:
        """memory [packed_size(weight)] is where the kernels' copy of the weight goes; gated: as of
        `Linear`; eights: a bfloat16 weight is rounded to 8 bits."""
        assert not eights or (weight.dtype == torch.bfloat16 and kernels.tandem_eights())
        self._multiply = kernels.tandem_multiply
        if memory is None:
            memory = zeros(
                [packed_size(kernels, weight, weight.dtype, gated, eights)], weight.dtype
            )
        source, bfloat = weight.detach().contiguous(), weight.dtype == torch.bfloat16
        lowest = lowest_exponent(source) if eights else 0
        kernels.tandem_pack(
            source.data_ptr(), *weight.shape, bfloat, gated, lowest, memory.data_ptr()
        )
        self.bias = None if bias is None else bias.detach().float().contiguous()
        address = None if self.bias is None else self.bias.data_ptr()
        self.memory = memory
        self.matrix = Matrix(memory.data_ptr(), address, *weight.shape, bfloat, gated, lowest)

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


def use_kernels(model: nn.Module, stored: torch.dtype, eights: bool = False) -> None:
    """Has a CPU model's linear layers run by the kernels, where there are any. Their weights move
    to where they are read fast, in the format `stored`. eights: where this is bfloat16 and the
    processor multiplies that, they are rounded to 8 bits."""
    kernels = load_kernels()
    if kernels is None or stored not in STORED:
        return
    eights = eights and stored == torch.bfloat16 and bool(kernels.tandem_eights())
    found = [one for one in model.modules() if isinstance(one, Linear) and one.kernel is None]
    sizes = [packed_size(kernels, one.weight, stored, one.gated, eights) for one in found]
    parts = zeros([sum(sizes)], stored).split(sizes)
    for module, part in zip(found, parts, strict=True):
        weight = module.weight.data.to(stored)
        module.kernel = KernelLinear(kernels, weight, module.bias, part, module.gated, eights)
        module.weight.data = torch.empty(0)
    give_back()


def packed_size(
    kernels: ctypes.CDLL,
    weight: Tensor,
    stored: torch.dtype,
    gated: bool,
    eights: bool = False,
) -> int:
    """Numbers of the format `stored` in the kernels' copy of a weight."""
    bfloat = stored == torch.bfloat16
    size: int = kernels.tandem_packed(*weight.shape, bfloat, gated, eights)
    return size


def lowest_exponent(weight: Tensor) -> int:
    """A bfloat16's, of the least numbers that its 8 bits can stand for beside the greatest (which
    what is not finite becomes)."""
    greatest = float(weight.abs().nan_to_num(0.0, posinf=0.0).max()) if weight.numel() else 0.0
    if not greatest:
        return 1  # as near to zero as there is
    return max(1, math.frexp(greatest)[1] - 1 + EXPONENT_BIAS - 15)
