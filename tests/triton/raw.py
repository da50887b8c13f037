"""Requests byte by byte, as no client library lets them be: over gRPC and over HTTP."""

import struct
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import grpc
import httpx2
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from tests.triton.protocol import MODEL, WAIT, events

_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
_FIELDS = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}


class RawTensor(NamedTuple):
    """An input as it is written, whether its parts fit each other or not."""

    name: str
    datatype: str
    shape: list[int]
    content: bytes


class Outcome(NamedTuple):
    """How a request ended: of the errors there is one at most, and nothing behind it."""

    answers: int
    errors: list[str]


def strings(*items: bytes) -> bytes:
    """Elements of a BYTES tensor."""
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


def message(
    tensors: list[RawTensor],
    parameters: Mapping[str, Any],
    request_id: str = "",
    model: str = MODEL,
) -> bytes:
    """A request as it goes over the wire."""
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for tensor in tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.content)
    for key, value in parameters.items():
        setattr(request.parameters[key], _FIELDS[type(value)], value)
    return request.SerializeToString()


def behind(request: bytes, over: threading.Event) -> Iterator[bytes]:
    """A stream that stays open behind a request."""
    yield request
    over.wait()


def is_request(content: bytes) -> bool:
    """Whether Triton can read it as a message of its protocol."""
    try:
        service_pb2.ModelInferRequest.FromString(content)
    except DecodeError:
        return False
    return True


def over_grpc(channel: grpc.Channel, content: bytes) -> Outcome:
    """What came on a stream of this one message, read to its end."""
    call = channel.stream_stream(
        _METHOD, response_deserializer=service_pb2.ModelStreamInferResponse.FromString
    )
    answers, errors = 0, []
    try:
        for response in call(iter([content]), timeout=WAIT):
            assert not errors, f"more than one end: {errors}, {response}"
            if response.error_message:
                errors.append(response.error_message)
            elif response.infer_response.outputs:
                answers += 1
    except grpc.RpcError as error:
        errors.append(error.details())
    return Outcome(answers, errors)


def over_http(client: httpx2.Client, endpoint: str, content: bytes) -> Outcome:
    """What one of Triton's generate endpoints says to a body."""
    response = client.post(f"/v2/models/{MODEL}/{endpoint}", content=content, timeout=WAIT)
    if response.headers["content-type"].startswith("text/event-stream"):
        said = events(response)
    else:
        said = [response.json()]
    errors = [one["error"] for one in said if "error" in one]
    assert not errors or "error" in said[-1], f"more than one end: {said}"
    assert (response.status_code == 200) == ("error" not in said[0])
    return Outcome(sum("text_output" in one for one in said), errors)
