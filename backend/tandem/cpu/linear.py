"""Linear layers by the kernels, for models that are not run as a whole by them."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor, nn

from tandem.cpu.library import STORED, load_kernels
from tandem.cpu.memory import gather
from tandem.cpu.structures import Matrix
from tandem.models.layers import Linear


class KernelLinear:
    """y = x Wᵀ + b, the weight read once for all rows."""

    def __init__(self, kernels: ctypes.CDLL, weight: Tensor, bias: Tensor | None) -> None:
        self._multiply = kernels.tandem_multiply
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach().float().contiguous()
        address = None if self.bias is None else self.bias.data_ptr()
        bfloat = weight.dtype == torch.bfloat16
        self.matrix = Matrix(self.weight.data_ptr(), address, *weight.shape, bfloat)

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
    """Has a CPU model's linear layers run by the kernels, where there are any, from weights in the
    format `stored`."""
    kernels = load_kernels()
    if kernels is None or stored not in STORED:
        return
    found = [one for one in model.modules() if isinstance(one, Linear) and one.kernel is None]
    weights = gather([one.weight.data for one in found], stored)
    for module, weight in zip(found, weights, strict=True):
        module.weight.data = weight
        module.kernel = KernelLinear(kernels, weight, module.bias)
