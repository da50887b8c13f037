"""Linear layers by the kernels, for models that are not run as a whole by them."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor, nn

from tandem.cpu.library import STORED, load_kernels
from tandem.cpu.structures import Matrix
from tandem.models.layers import Linear


class KernelLinear:
    """y = x Wᵀ + b, the weight read once for all rows."""

    def __init__(self, kernels: ctypes.CDLL, weight: Tensor, bias: Tensor | None) -> None:
        self._multiply = kernels.tandem_multiply
        self._weight = weight.detach()
        self._bias = None if bias is None else bias.detach().float().contiguous()
        address = None if self._bias is None else self._bias.data_ptr()
        self._matrix = Matrix(self._weight.data_ptr(), address, *weight.shape)
        self._bfloat = int(weight.dtype == torch.bfloat16)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., columns] to [..., rows], in the dtype of x."""
        width, height = self._matrix.columns, self._matrix.rows
        if x.shape[-1] != width:
            raise ValueError(f"x has {x.shape[-1]} columns, the weight {width}")
        floats = x.float().contiguous()
        y = torch.empty(*x.shape[:-1], height)
        count, threads = floats.numel() // width, torch.get_num_threads()
        self._multiply(self._matrix, floats.data_ptr(), count, y.data_ptr(), threads, self._bfloat)
        return y.to(x.dtype)


def use_kernels(model: nn.Module) -> None:
    """Has a CPU model's linear layers run by the kernels, where there are any."""
    kernels = load_kernels()
    if kernels is None:
        return
    for module in model.modules():
        if isinstance(module, Linear) and module.weight.dtype in STORED:
            module.kernel = KernelLinear(kernels, module.weight, module.bias)
