"""Linear layers by the kernels, for models that are not run as a whole by them."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor, nn

from tandem.cpu.library import load_kernels
from tandem.cpu.structures import Matrix
from tandem.models.layers import Linear

STORED = (torch.float32, torch.bfloat16)


class KernelLinear:
    """y = x Wᵀ + b, the weight read once for all rows."""

    def __init__(self, kernels: ctypes.CDLL, weight: Tensor, bias: Tensor | None) -> None:
        self._multiply = kernels.tandem_multiply
        self._weight = weight.detach()
        self._bias = None if bias is None else bias.detach().float().contiguous()
        address = None if self._bias is None else self._bias.data_ptr()
        self._matrix = Matrix(self._weight.data_ptr(), address, *weight.shape)
        self._half = int(weight.dtype == torch.bfloat16)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., columns] to [..., rows], in the dtype of x."""
        rows = x.reshape(-1, self._matrix.columns).float().contiguous()
        y = torch.empty(len(rows), self._matrix.rows)
        threads = torch.get_num_threads()
        self._multiply(self._matrix, rows.data_ptr(), len(rows), y.data_ptr(), threads, self._half)
        return y.view(*x.shape[:-1], -1).to(x.dtype)


def use_kernels(model: nn.Module) -> None:
    """Has a CPU model's linear layers run by the kernels, where there are any."""
    kernels = load_kernels()
    if kernels is None:
        return
    for module in model.modules():
        if isinstance(module, Linear) and module.weight.dtype in STORED:
            module.kernel = KernelLinear(kernels, module.weight, module.bias)
