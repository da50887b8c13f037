"""Talks to the model as any client of Triton does: `tritonclient` over gRPC, plain HTTP."""

import json
import queue
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import httpx2
import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput, InferResult
from tritonclient.utils import InferenceServerException

MODEL = "tandem"
WAIT = 60.0  # seconds: far beyond any answer of a healthy server

_DATATYPES = {"input_ids": ("INT32", np.int32), "num_draft_tokens": ("INT32", np.int32)}


class Response(NamedTuple):
    """One response on a gRPC stream."""

    outputs: dict[str, list[Any]]
    final: bool

    @property
    def text(self) -> str:
        [text] = self.outputs["text_output"]  # Triton's OpenAI frontend needs exactly one
        return text.decode()  # strict: every chunk is UTF-8 by itself


class Refused(Exception):
    """The server's error; on Triton's streams it is a sentence without a code."""


def tensors(values: Mapping[str, Any]) -> list[InferInput]:
    """Inputs by name; str and bytes, bool and int get the contract's datatypes."""
    return [_tensor(name, value) for name, value in values.items()]


def _tensor(name: str, value: Any) -> InferInput:
    items = value if isinstance(value, list) else [value]
    if name in _DATATYPES:
        datatype, kind = _DATATYPES[name]
    elif isinstance(items[0], bool):
        datatype, kind = "BOOL", np.bool_
    else:
        datatype, kind = "BYTES", np.object_
        items = [item.encode() if isinstance(item, str) else item for item in items]
    tensor = InferInput(name, [len(items)], datatype)
    tensor.set_data_from_numpy(np.array(items, dtype=kind))
    return tensor


def sampling(**keys: Any) -> str:
    """The `sampling_parameters` input: greedy unless told otherwise."""
    return json.dumps({"temperature": 0, "ignore_eos": True} | keys)


def responses(
    url: str,
    inputs: Mapping[str, Any],
    parameters: Mapping[str, Any] | None = None,
    model: str = MODEL,
    request_id: str = "",
    microseconds: int | None = None,
) -> Iterator[Response]:
    """All responses to one request, the final one last; leaving early cancels it. microseconds:
    Triton's own timeout."""
    arrived: queue.Queue[tuple[InferResult | None, InferenceServerException | None]] = queue.Queue()
    client = InferenceServerClient(url)
    client.start_stream(lambda result, error: arrived.put((result, error)))
    try:
        client.async_stream_infer(
            model,
            tensors(inputs),
            parameters=dict(parameters or {}),
            request_id=request_id,
            timeout=microseconds,
            enable_empty_final_response=True,
        )
        final = False
        while not final:
            result, error = arrived.get(timeout=WAIT)
            if error:
                client.stop_stream()  # cancelled now, the request would stay in Triton for ever
                raise Refused(error.message())
            response = _response(result)
            final = response.final
            yield response
        client.stop_stream()
        assert arrived.empty(), "a response after the final one"
    finally:
        client.stop_stream(cancel_requests=True)
        client.close()


def _response(result: InferResult) -> Response:
    message = result.get_response()
    outputs = {output.name: result.as_numpy(output.name).tolist() for output in message.outputs}
    return Response(outputs, message.parameters["triton_final_response"].bool_param)


def stream(url: str, prompt: str | list[int], **keys: Any) -> list[Response]:
    """Stream greedily with the optional outputs; `keys` are sampling parameters, `k` the draft's
    length."""
    source = {"text_input": prompt} if isinstance(prompt, str) else {"input_ids": prompt}
    draft = {"num_draft_tokens": keys.pop("k")} if "k" in keys else {}
    asked = {
        "stream": True,
        "sampling_parameters": sampling(**keys),
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "return_output_ids": True,
        "return_speculation_stats": True,
    }
    return list(responses(url, source | draft | asked))


def last_of(answer: Iterable[Response]) -> dict[str, list[Any]]:
    """The outputs of the last response that has any."""
    return [response.outputs for response in answer if response.outputs][-1]


def joined(answer: Iterable[Response], name: str) -> list[Any]:
    """All values of an output over a stream."""
    return [value for response in answer for value in response.outputs.get(name, ())]


def mean_draft(answer: Iterable[Response]) -> float:
    """Tokens drafted a round, over a stream."""
    [drafted], [rounds] = joined(answer, "total_draft_tokens"), joined(answer, "num_rounds")
    return float(drafted) / float(rounds)


def text_of(answer: Iterable[Response]) -> str:
    """The deltas of a stream, put together."""
    return "".join(response.text for response in answer if response.outputs)


def post(url: str, body: Any, endpoint: str = "generate", model: str = MODEL) -> httpx2.Response:
    """POST to one of Triton's generate endpoints."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx2.post(f"http://{url}/v2/models/{model}/{endpoint}", content=content, timeout=WAIT)


def events(response: httpx2.Response) -> list[dict[str, Any]]:
    """The server-sent events of a whole `generate_stream` response."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *frames, rest = response.text.split("\n\n")
    assert rest == ""
    assert all(frame.startswith("data: ") for frame in frames)
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]
