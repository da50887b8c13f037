"""Just enough of `triton_python_backend_utils` to see what the model sends, codes included."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

FINAL = 1


@dataclass
class Tensor:
    name: str
    values: Any

    def as_numpy(self) -> Any:
        return self.values


class TritonError(Exception):
    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, CANCELLED = range(6)

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor]
    error: TritonError | None = None

    def text(self, name: str = "text_output") -> str:
        return self.values(name)[0].decode()

    def values(self, name: str) -> list[Any]:
        return next(t.values for t in self.output_tensors if t.name == name).tolist()

    def names(self) -> set[str]:
        return {tensor.name for tensor in self.output_tensors}


@dataclass
class Sender:
    sent: list[InferenceResponse] = field(default_factory=list)
    finals: int = 0
    cancelled: bool = False

    def send(self, response: InferenceResponse, flags: int = 0) -> None:
        assert self.finals == 0, "a response after the final one"
        self.sent.append(response)
        self.finals += flags == FINAL

    def is_cancelled(self) -> bool:
        assert self.finals == 0, "Triton was asked about an answered request"
        return self.cancelled


@dataclass
class Request:
    inputs: dict[str, Any]
    own_parameters: str | bytes = "{}"
    own_timeout: int = 0
    own_id: str | bytes = ""
    sender: Sender = field(default_factory=Sender)

    def get_response_sender(self) -> Sender:
        return self.sender

    def request_id(self) -> str:
        return _as_text(self.own_id)

    def timeout(self) -> int:
        return self.own_timeout

    def parameters(self) -> str:
        return _as_text(self.own_parameters)


def _as_text(value: str | bytes) -> str:
    """As Triton's binding does, which raises where the bytes are no UTF-8."""
    return value if isinstance(value, str) else value.decode()


class TritonModelException(Exception):
    """What Triton's calls raise."""


@dataclass
class Metric:
    labels: dict[str, str]
    buckets: list[float] | None = None
    value: float = 0.0
    observed: list[float] = field(default_factory=list)

    def increment(self, by: float) -> None:
        assert by >= 0, "a counter that falls"
        self.value += by

    def set(self, value: float) -> None:
        self.value = value

    def observe(self, value: float) -> None:
        self.observed.append(value)


class MetricFamily:
    COUNTER, GAUGE, HISTOGRAM = range(3)
    made: ClassVar[dict[str, MetricFamily]] = {}
    refusal: ClassVar[str] = ""

    def __init__(self, name: str, description: str, kind: int) -> None:
        if self.refusal:
            raise TritonModelException(self.refusal)
        self.kind, self.description = kind, description
        self.metrics: list[Metric] = []
        self.made[name] = self

    def Metric(self, labels: dict[str, str], buckets: list[float] | None = None) -> Metric:
        assert (buckets is not None) == (self.kind == self.HISTOGRAM)
        self.metrics.append(Metric(labels, buckets))
        return self.metrics[-1]


def get_input_tensor_by_name(request: Request, name: str) -> Tensor | None:
    if name not in request.inputs:
        return None
    value = request.inputs[name]
    value = value.encode() if isinstance(value, str) else value
    if isinstance(value, bytes):
        return Tensor(name, np.array([value], dtype=np.object_))
    return Tensor(name, np.atleast_1d(np.array(value)))


def install() -> None:
    """Makes the model's `import triton_python_backend_utils` find this module."""
    module = ModuleType("triton_python_backend_utils")
    names = {
        "Tensor": Tensor,
        "TritonError": TritonError,
        "TritonModelException": TritonModelException,
        "MetricFamily": MetricFamily,
        "InferenceResponse": InferenceResponse,
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL": FINAL,
        "get_input_tensor_by_name": get_input_tensor_by_name,
    }
    for name, value in names.items():
        setattr(module, name, value)
    sys.modules["triton_python_backend_utils"] = module
