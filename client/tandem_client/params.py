"""What a request may ask for: the sampling parameters and the speculation override."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias


@dataclass(frozen=True)
class GenerationParams:
    """Parameters of one request; None leaves the server's default in force."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    logprobs: int | None = None
    bad_words: Sequence[str] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    priority: int | None = None  # lower ones are served first
    speculative_method: str | None = None  # one of the model's methods, or "none"
    # The longest draft a verification round may hold; 0 turns speculation off. Not a sampling
    # parameter: it travels as an input of its own.
    num_draft_tokens: int | None = None

    def sampling_json(self, timeout: float | None = None) -> str:
        """The JSON of the `sampling_parameters` input: the keys that are set."""
        keys = asdict(self) | {"num_draft_tokens": None, "timeout": timeout}
        return json.dumps({key: value for key, value in keys.items() if value is not None})

    @classmethod
    def of(cls, params: "ParamsLike" = None, **overrides: Any) -> "GenerationParams":
        """Build from an instance, a mapping or nothing, then apply `overrides`."""
        base = params if isinstance(params, GenerationParams) else cls(**(params or {}))
        return replace(base, **overrides)


ParamsLike: TypeAlias = GenerationParams | Mapping[str, Any] | None
