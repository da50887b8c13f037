"""The contract on the wire: one request as named fields, one response as named outputs.

Both protocols carry the same fields; gRPC wraps them in tensors, HTTP in JSON.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from tritonclient.grpc import InferResult, service_pb2

from tandem_client.errors import InvalidArgument
from tandem_client.params import GenerationParams
from tandem_client.types import Chunk, SpeculationStats

Prompt: TypeAlias = str | Sequence[int]
Fields: TypeAlias = dict[str, str | bool | int | list[int]]


def request_fields(
    prompt: Prompt,
    params: GenerationParams,
    details: bool,
    timeout: float | None = None,
    request_id: str | None = None,
) -> Fields:
    """The inputs of one streaming request, and its `id` if it has one.

    `details` asks for token ids and speculation statistics and says the timeout, which only Tandem
    knows: without them the fields are exactly those of Triton's vLLM backend. Raises
    `InvalidArgument` for what is no text.
    """
    check_text("The prompt", prompt if isinstance(prompt, str) else "")
    check_text("The request id", request_id or "")
    for text in [params.stop] if isinstance(params.stop, str) else params.stop or ():
        check_text("A stop string", text)
    for text in params.bad_words or ():
        check_text("A bad word", text)
    fields: Fields = {
        "stream": True,
        "sampling_parameters": params.sampling_json(timeout if details else None),
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    }
    if isinstance(prompt, str):
        fields["text_input"] = prompt
    else:
        fields["input_ids"] = list(prompt)
    if params.logprobs is not None:
        fields["return_logprobs"] = True
    if params.num_draft_tokens is not None:
        fields["num_draft_tokens"] = params.num_draft_tokens
    if details:
        fields["return_output_ids"] = True
        fields["return_speculation_stats"] = True
    if request_id is not None:
        fields["id"] = request_id
        if details:
            fields["return_request_id"] = True
    return fields


def check_text(name: str, text: str) -> None:
    """Raises `InvalidArgument` for a string that is no Unicode text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{name} has {error.object[error.start]!a} at character {error.start + 1}, which is no "
            "Unicode text: send it as UTF-8."
        ) from None


def to_proto(model: str, fields: Fields) -> service_pb2.ModelInferRequest:
    """The fields as a gRPC request that ends in an empty final response."""
    inputs = dict(fields)
    request = service_pb2.ModelInferRequest(model_name=model, id=str(inputs.pop("id", "")))
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, value in inputs.items():
        datatype, size, raw = _tensor(name, value)
        request.inputs.add(name=name, datatype=datatype, shape=[size])
        request.raw_input_contents.append(raw)
    return request


def _tensor(name: str, value: str | bool | int | list[int]) -> tuple[str, int, bytes]:
    """Triton's datatype, the length and the raw bytes of a rank-1 tensor. Raises `InvalidArgument`
    for an integer that has no place in it, which NumPy would make another one."""
    if isinstance(value, str):
        encoded = value.encode()
        return "BYTES", 1, struct.pack("<I", len(encoded)) + encoded
    if isinstance(value, bool):
        return "BOOL", 1, np.array([value]).tobytes()
    numbers = value if isinstance(value, list) else [value]
    for number in numbers:
        if not -(2**31) <= number < 2**31:
            raise InvalidArgument(f"{name} has {number}, which takes more than 32 bits.")
    return "INT32", len(numbers), np.array(numbers, dtype="<i4").tobytes()


def proto_outputs(response: service_pb2.ModelInferResponse) -> dict[str, list[Any]]:
    """The outputs of a gRPC response by name; BYTES become str."""
    result = InferResult(response)
    values = {output.name: result.as_numpy(output.name) for output in response.outputs}
    return {
        name: [item.decode() if isinstance(item, bytes) else item for item in array.tolist()]
        for name, array in values.items()
    }


def json_outputs(message: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The outputs of a generate response by name; Triton writes one element as a scalar."""
    return {
        name: value if isinstance(value, list) else [value]
        for name, value in message.items()
        if name not in ("model_name", "model_version", "id")
    }


def to_chunk(outputs: Mapping[str, list[Any]]) -> Chunk:
    """One response's outputs as a chunk; those that were not sent keep their defaults."""
    token_ids = tuple(outputs.get("output_ids", ()))
    reason = _first(outputs, "finish_reason", "None")
    return Chunk(
        text="".join(outputs.get("text_output", ())),
        token_ids=token_ids,
        drafted=tuple(outputs.get("output_drafted", ())),
        num_tokens=_first(outputs, "num_output_tokens", len(token_ids)),
        # The contract spells "not finished yet" as the string None.
        finish_reason=None if reason == "None" else reason,
        logprobs=tuple(json.loads(_first(outputs, "logprobs", "[]"))),
        num_input_tokens=_first(outputs, "num_input_tokens", None),
        request_id=_first(outputs, "request_id", None),
        stats=_stats(outputs),
    )


def _stats(outputs: Mapping[str, list[Any]]) -> SpeculationStats | None:
    if "total_draft_tokens" not in outputs:
        return None
    return SpeculationStats(
        acceptance_rate=_first(outputs, "acceptance_rate", 0.0),
        drafted=outputs["total_draft_tokens"][0],
        accepted=_first(outputs, "total_accepted_draft_tokens", 0),
        rounds=_first(outputs, "num_rounds", 0),
    )


def _first(outputs: Mapping[str, list[Any]], name: str, default: Any) -> Any:
    values = outputs.get(name)
    return values[0] if values else default
