"""Reads a Triton request: tensors, or the request's own parameters, to a prompt and its options."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import triton_python_backend_utils as pb_utils

from tandem.errors import InvalidRequestError
from tandem.front import CANCEL, CANCEL_ID, GIVEN_ID, LONGEST_NAME
from tandem.request import Prompt, SamplingParams

FLAGS = (
    "return_finish_reason",
    "return_cumulative_logprob",
    "return_logprobs",
    "return_num_input_tokens",
    "return_num_output_tokens",
    "return_speculation_stats",
    "return_output_ids",
    "return_request_id",
)
# Parameters that Triton's own front ends add: `id` is the request's, which `generate` repeats.
INTERNAL_PREFIX = "triton_"
INTERNAL = ("id", CANCEL_ID)
OWN = "JSON of the request's parameters"
LONGEST_IN_LOG = 64


@dataclass(frozen=True)
class Ask:
    """What a client asked for."""

    prompt: Prompt
    params: SamplingParams
    stream: bool
    prepend: str
    """Text put before the first output: the prompt, unless excluded or streamed."""
    wanted: frozenset[str]
    """The `return_…` flags that are set."""
    cancel_id: str
    """By which it can be taken back; empty: nobody has named it."""


def parse(request: Any, max_bytes: int) -> Ask:
    """Reads one request of which no part is larger than that. Raises `InvalidRequestError`, one
    sentence."""
    if _tensor(request, "image") is not None:
        raise InvalidRequestError("This model reads text only: leave out the input 'image'.")
    prompt = _prompt(request, max_bytes)
    stream = _flag(request, "stream") or False
    exclude = _flag(request, "exclude_input_in_output")
    if stream and exclude is False:
        raise InvalidRequestError(
            "exclude_input_in_output is false, but when streaming the prompt cannot be put before "
            "the output: set it to true or leave it out."
        )
    wanted = frozenset(flag for flag in FLAGS if _flag(request, flag))
    prepend = prompt if isinstance(prompt, str) and not stream and not exclude else ""
    own = _own_parameters(request, max_bytes)
    params = _params(request, own, wanted, max_bytes)
    return Ask(prompt, params, stream, prepend, wanted, _cancel_name(own, CANCEL_ID))


def name_of(request: Any) -> str:
    """The id that a client gave its request, fit for a line of the log; empty: none. Raises
    `InvalidRequestError`."""
    name = _decoded(request.request_id, "request's id")
    return "" if name.startswith(GIVEN_ID) else printable(name)


def taken_back(request: Any, max_bytes: int) -> str | None:
    """The `cancel_id` of a request that is taken back, where this one is for that alone.

    Triton's HTTP does not notice that a client has left before it has something to write to it
    (issue 7077 of its server), but what stands before Triton does. Raises `InvalidRequestError`.
    """
    # Nearly all have no such word in them, and need not be read twice.
    if f'"{CANCEL}"' not in _decoded(request.parameters, OWN):
        return None
    own = _own_parameters(request, max_bytes)
    if CANCEL not in own:
        return None
    more = {key for key in own if key != CANCEL and not _is_internal(key)}
    more |= {key for key in ("text_input", "input_ids") if _tensor(request, key) is not None}
    if more:
        raise InvalidRequestError(
            "The parameter 'cancel' takes back another request: send it without "
            f"'{printable(min(more))}'."
        )
    return _cancel_name(own, CANCEL)


def _cancel_name(own: Mapping[str, Any], key: str) -> str:
    name = str(own.get(key) or "")
    if len(name) > LONGEST_NAME:
        raise InvalidRequestError(
            f"The parameter '{key}' is of {len(name)} characters: send {LONGEST_NAME} at most."
        )
    return name


def printable(name: str) -> str:
    """A name, as far as a line of the log can hold it."""
    return "".join(c if c.isprintable() else "?" for c in name[:LONGEST_IN_LOG])


def _prompt(request: Any, max_bytes: int) -> Prompt:
    text, ids = _tensor(request, "text_input"), _tensor(request, "input_ids")
    if (text is None) == (ids is None):
        raise InvalidRequestError("Send the prompt as 'text_input' or as 'input_ids', one of them.")
    if ids is not None:
        _check_size(ids.nbytes, "input 'input_ids'", max_bytes)
        return [int(token) for token in ids.reshape(-1)]
    prompt = _text(text, "text_input", max_bytes)
    if not prompt:
        raise InvalidRequestError("The input 'text_input' is empty: send a prompt.")
    return prompt


def _own_parameters(request: Any, max_bytes: int) -> dict[str, Any]:
    written = _decoded(request.parameters, OWN)
    _check_size(len(written.encode()), OWN, max_bytes)
    own: dict[str, Any] = json.loads(written or "{}")
    return own


def _params(
    request: Any, own: dict[str, Any], wanted: frozenset[str], max_bytes: int
) -> SamplingParams:
    values = _sampling_values(request, own, max_bytes)
    if request.timeout():  # Triton's own, in microseconds
        values.setdefault("timeout", request.timeout() / 1e6)
    draft = _tensor(request, "num_draft_tokens")
    if draft is not None:
        values["num_draft_tokens"] = int(_one(draft, "num_draft_tokens"))
    needs_logprobs = wanted & {"return_logprobs", "return_cumulative_logprob"}
    if needs_logprobs and values.get("logprobs") is None:
        values["logprobs"] = 0
    return SamplingParams(**values)


def _sampling_values(request: Any, own: dict[str, Any], max_bytes: int) -> dict[str, Any]:
    """The tensor's JSON; without the tensor, the request's own parameters."""
    tensor = _tensor(request, "sampling_parameters")
    if tensor is None:
        return {key: value for key, value in own.items() if not _is_internal(key)}
    text = _text(tensor, "sampling_parameters", max_bytes)
    try:
        values = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:  # not all of json's errors are its own
        raise InvalidRequestError(
            f"The input 'sampling_parameters' is not JSON ({error}): send an object such as "
            '{"max_tokens": 64}.'
        ) from None
    if not isinstance(values, dict):
        raise InvalidRequestError(
            "The input 'sampling_parameters' must be a JSON object such as {\"max_tokens\": 64}."
        )
    return values


def _is_internal(key: str) -> bool:
    return key in INTERNAL or key.startswith(INTERNAL_PREFIX)


def _tensor(request: Any, name: str) -> Any:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def _one(values: Any, name: str) -> Any:
    flat = values.reshape(-1)
    if flat.size != 1:
        raise InvalidRequestError(f"The input {name!r} has {flat.size} elements: send one.")
    return flat[0]


def _flag(request: Any, name: str) -> bool | None:
    values = _tensor(request, name)
    return None if values is None else bool(_one(values, name))


def _check_size(size: int, what: str, most: int) -> None:
    """Before it is read: reading takes time that others wait for."""
    if size > most:
        raise InvalidRequestError(
            f"The {what} has {size} bytes, but max_prompt_bytes is {most}: send fewer."
        )


def _text(values: Any, name: str, max_bytes: int) -> str:
    raw = _one(values, name)
    _check_size(len(raw), f"input {name!r}", max_bytes)
    return raw if isinstance(raw, str) else _decoded(lambda: str(raw, "utf-8"), f"input {name!r}")


def _decoded(read: Callable[[], str], what: str) -> str:
    """What Triton hands over may be any bytes."""
    try:
        return read()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"The {what} is not UTF-8 (byte {error.start}): encode the text as UTF-8."
        ) from None
