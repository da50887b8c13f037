"""What a request may not be, whatever protocol it came by: a sentence for each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from tandem.errors import TandemError
from tandem.validation import short

MOST_DIMENSIONS = 16
SHARED_MEMORY = "shared_memory_region"


class RefusedError(TandemError):
    """A request that is not passed on."""


def read_json(text: bytes) -> Any:
    """What a body says. Raises RefusedError: it is no JSON, or deeper than Python reads (about a
    thousand; tritonserver ends at 50,000, for it reads by recursion)."""
    try:
        return json.loads(text.decode(), object_pairs_hook=_object)
    except RecursionError:
        raise RefusedError("The body's JSON is too deep: send less of it within other.") from None
    except ValueError as error:
        raise RefusedError(f"The body is no JSON ({error}): send an object.") from None


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Triton would read the first of two that have one name."""
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("a name is there twice")
    return found


def check_message(content: bytes) -> service_pb2.ModelInferRequest:
    """What it says. Raises RefusedError: it is none, or breaks Triton."""
    try:
        request = service_pb2.ModelInferRequest.FromString(content)
    except DecodeError:
        raise RefusedError(
            "The message is no ModelInferRequest: send what Triton's protocol says."
        ) from None
    for tensor in request.inputs:
        _check_shape(tensor.name, tensor.shape, len(content))
    _check_memory(one.parameters for one in (request, *request.inputs, *request.outputs))
    return request


def check_tensors(said: Any, size: int) -> None:
    """Raises RefusedError: the JSON of an inference request that may break Triton. size: bytes
    of its body."""
    tensors = [said, *_listed(said, "inputs"), *_listed(said, "outputs")]
    objects = [
        *tensors,
        *(one.get("parameters", {}) for one in tensors if isinstance(one, Mapping)),
    ]
    if not all(isinstance(one, Mapping) for one in objects):
        raise RefusedError("The body is no inference request: send what Triton's protocol says.")
    for one in tensors:
        shape = one.get("shape", [])
        if not isinstance(shape, list) or not all(type(each) is int for each in shape):
            raise RefusedError("A shape is no list of integers: send the shape of what is sent.")
        _check_shape(str(one.get("name")), shape, size)
    _check_memory(objects)


def _listed(said: Any, key: str) -> list[Any]:
    found = said.get(key) if isinstance(said, Mapping) else None
    return found if isinstance(found, list) else []


def _check_shape(name: str, shape: Sequence[int], size: int) -> None:
    """Whether so many bytes may hold it. (A product of millions would take long.)"""
    if len(shape) > MOST_DIMENSIONS or min(shape, default=0) < 0 or math.prod(shape) > size:
        raise RefusedError(
            f"The shape {short(list(shape[:MOST_DIMENSIONS]))} of {short(name)} is of more "
            f"elements than the message has bytes, or of too many dimensions "
            f"({MOST_DIMENSIONS} at most): send the shape of what is sent."
        )


def _check_memory(parameters: Iterable[Any]) -> None:
    if any(SHARED_MEMORY in one for one in parameters):
        raise RefusedError(
            "Shared memory is not for clients of this server: send tensors in the message."
        )
