"""What a request may not be, whatever protocol it came by: a sentence for each."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Final

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from tandem.errors import TandemError
from tandem.front import CANCEL, CANCEL_ID, LONGEST_NAME
from tandem.validation import short

MOST_DIMENSIONS: Final = 16
MOST_TENSORS: Final = 256
"""Of a request, and of each tensor's parameters."""
MOST_BRACKETS: Final = 50_000
"""Of a body's JSON, outside of its texts. (4 MiB take 0.1 s to read then, and 1 s without.)"""
OF_TENSORS: Final = frozenset({"binary_data", "binary_data_size"})
"""Parameters that a tensor may have. (By `classification` of text tritonserver 2.51 ends, and
shared memory is not for clients.)"""
_TEXTS: Final = re.compile(rb'(?:"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)[^"\[{]*+)++', re.DOTALL)
"""And what is between them, up to the next bracket. Possessive, so that nothing is read twice."""
LONGEST_MODEL = LONGEST_ID = 256
VERSION: Final = "0|[1-9][0-9]{0,18}"
"""Of a model. (Triton would read what begins so, as often as it is written in another way.)"""
_VERSION: Final = re.compile(f"({VERSION})?")
_SAYS_ITS_LENGTH: Final = 2  # https://protobuf.dev/programming-guides/encoding
NO_REQUEST: Final = "The message is no ModelInferRequest: send what Triton's protocol says."


class RefusedError(TandemError):
    """A request that is not passed on."""

    reason: ClassVar[str] = "invalid"
    """As it is counted."""


def read_json(text: bytes) -> Any:
    """What a body says. Raises RefusedError: it is no JSON, of too many brackets, or deeper than
    Python reads (about a thousand; tritonserver ends at 50,000, for it reads by recursion)."""
    # Texts may have brackets too. (Between two that are left out there is one at least.)
    if (
        _brackets(text) > MOST_BRACKETS
        and _brackets(_TEXTS.sub(b"", text, count=MOST_BRACKETS + 2)) > MOST_BRACKETS
    ):
        raise RefusedError(f"The body's JSON has over {MOST_BRACKETS} brackets: send less.")
    try:
        return json.loads(text.decode(), object_pairs_hook=_object)
    except RecursionError:
        raise RefusedError("The body's JSON is too deep: send less of it within other.") from None
    except ValueError as error:
        raise RefusedError(f"The body is no JSON ({error}): send an object.") from None


def _brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Triton would read the first of two that have one name."""
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("a name is there twice")
    return found


def check_names(said: Mapping[str, Any]) -> str:
    """The name by which a request is to be taken back; "" where it says none, or takes another one
    back. Raises RefusedError: it is no such text, or not beside the other parameters."""
    nested = said.get("parameters")
    hidden = {CANCEL, CANCEL_ID} & nested.keys() if isinstance(nested, dict) else ()
    if hidden:
        raise RefusedError(f"'{min(hidden)}' is within 'parameters': send it beside 'text_input'.")
    for key in (CANCEL, CANCEL_ID):
        if not isinstance(name := said.get(key, key), str) or not 0 < len(name) <= LONGEST_NAME:
            raise RefusedError(
                f"'{key}' is {short(name)}: send a text of 1 to {LONGEST_NAME} characters."
            )
    return str(said.get(CANCEL_ID, ""))


def read_message(content: bytes) -> service_pb2.ModelInferRequest:
    """What it says. Raises RefusedError: it is none, or of too many parts."""
    _count_fields(content)
    try:
        return service_pb2.ModelInferRequest.FromString(content)
    except DecodeError:
        raise RefusedError(NO_REQUEST) from None


def check_message(request: service_pb2.ModelInferRequest, size: int) -> None:
    """Raises RefusedError: it may break Triton, or has names as Triton has none. size: its
    bytes."""
    if len(request.model_name) > LONGEST_MODEL or not _VERSION.fullmatch(request.model_version):
        raise RefusedError(
            f"There is no model {short(request.model_name)} of version "
            f"{short(request.model_version)}: send a model's name, and digits or nothing."
        )
    if len(request.id) > LONGEST_ID:
        raise RefusedError(
            f"The request's id is of {len(request.id)} characters: send {LONGEST_ID} at most."
        )
    for tensor in request.inputs:
        _check_shape(tensor.name, tensor.shape, size)
    for tensor in (*request.inputs, *request.outputs):
        _check_parameters(tensor.name, tensor.parameters)


def takes_back(request: service_pb2.ModelInferRequest) -> bool:
    """Whether it is for that alone, as far as a message says so."""
    return CANCEL in request.parameters and not request.inputs


def _count_fields(content: bytes) -> None:
    """Raises RefusedError where a message has so many that it takes seconds to read them, or others
    than a ModelInferRequest, whose fields all say their length."""
    at = count = 0
    while at < len(content):
        tag, at = _varint(content, at)
        size, at = _varint(content, at)
        at, count = at + size, count + 1
        if tag & 7 != _SAYS_ITS_LENGTH:
            raise RefusedError(NO_REQUEST)
        if count > MOST_TENSORS:
            raise RefusedError(f"The message is of more than {MOST_TENSORS} parts: send less.")


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next one is. (Of one that is cut off, whatever: it is told later.)"""
    number = 0
    for place, byte in enumerate(content[at : at + 10]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    return number, len(content)


def check_tensors(said: Any, size: int) -> None:
    """Raises RefusedError: the JSON of an inference request that may break Triton. size: bytes
    of its body."""
    tensors = [*_listed(said, "inputs"), *_listed(said, "outputs")]
    objects = [said, *tensors]
    objects += [one.get("parameters", {}) for one in objects if isinstance(one, Mapping)]
    if not all(isinstance(one, Mapping) for one in objects):
        raise RefusedError("The body is no inference request: send what Triton's protocol says.")
    if len(tensors) > MOST_TENSORS:
        raise RefusedError(f"The body is of more than {MOST_TENSORS} tensors: send less.")
    for one in tensors:
        shape, name = one.get("shape", []), str(one.get("name"))
        if not isinstance(shape, list) or not all(type(each) is int for each in shape):
            raise RefusedError("A shape is no list of integers: send the shape of what is sent.")
        _check_shape(name, shape, size)
        _check_parameters(name, one.get("parameters", {}))


def _listed(said: Any, key: str) -> list[Any]:
    found = said.get(key) if isinstance(said, Mapping) else None
    return found if isinstance(found, list) else []


def _check_shape(name: str, shape: Sequence[int], size: int) -> None:
    """Whether so many bytes may hold it. (A product of millions would take long; Triton's own
    overflows behind a zero too.)"""
    if (
        len(shape) > MOST_DIMENSIONS
        or min(shape, default=0) < 0
        or math.prod(max(one, 1) for one in shape) > size
    ):
        raise RefusedError(
            f"The shape {short(list(shape[:MOST_DIMENSIONS]))} of {short(name)} is of more "
            f"elements than the message has bytes, or of too many dimensions "
            f"({MOST_DIMENSIONS} at most): send the shape of what is sent."
        )


def _check_parameters(name: str, parameters: Iterable[str]) -> None:
    wrong = [key for key in islice(parameters, MOST_TENSORS) if key not in OF_TENSORS]
    if wrong:
        raise RefusedError(
            f"The parameter {short(wrong[0])} of {short(name)} is not for clients of this server: "
            "leave it out."
        )
