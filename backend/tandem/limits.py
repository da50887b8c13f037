"""What requests may ask, whichever engine serves them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from tandem.errors import InvalidRequestError
from tandem.request import Request, SamplingParams
from tandem.validation import short


class Limits:
    """What a request may ask of this model."""

    def __init__(
        self,
        vocab_size: int,
        eos_ids: Iterable[int],
        max_model_len: int,
        methods: Sequence[str] = (),
    ) -> None:
        """methods: those of speculation that were loaded."""
        self.vocab_size = vocab_size
        self.eos_ids = frozenset(token for token in eos_ids if 0 <= token < vocab_size)
        self.max_model_len = max_model_len
        self.methods = tuple(dict.fromkeys([*methods, "none"]))

    def check(self, tokens: Sequence[int], params: SamplingParams) -> None:
        """Raises `InvalidRequestError` for what this model can never serve."""
        if not tokens:
            raise InvalidRequestError("The prompt is empty: send at least one token.")
        if len(tokens) >= self.max_model_len:
            raise InvalidRequestError(
                f"The prompt has {len(tokens)} tokens, but prompt and output together may have "
                f"{self.max_model_len}: shorten the prompt or raise max_model_len."
            )
        named = {"prompt": tokens, "stop_token_ids": params.stop_token_ids}
        for name, ids in (named | {"logit_bias": list(params.logit_bias)}).items():
            if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
                wrong = min(ids) if min(ids) < 0 else max(ids)
                raise InvalidRequestError(
                    f"The token id {short(wrong)} in {name} is outside the vocabulary of "
                    f"{self.vocab_size}: use ids of this model's tokenizer."
                )

        if params.speculative_method not in (None, *self.methods):
            raise InvalidRequestError(
                f"The sampling parameter 'speculative_method' is {params.speculative_method!r}, "
                f"but this model was loaded with {', '.join(self.methods)}: name one of these."
            )

    def request(
        self, name: str, tokens: list[int], params: SamplingParams, arrival: float | None
    ) -> Request:
        """What is asked, checked. arrival: by `time.monotonic`; None: now."""
        self.check(tokens, params)
        return Request(
            id=name,
            tokens=tokens,
            num_prompt=len(tokens),
            params=params,
            seed=params.seed,
            max_total=self._max_total(len(tokens), params),
            stop_ids=self._stop_ids(params),
            arrival=time.monotonic() if arrival is None else arrival,
        )

    def _max_total(self, num_prompt: int, params: SamplingParams) -> int:
        """Most tokens of prompt and output together."""
        if params.max_tokens is None:
            return self.max_model_len
        return min(self.max_model_len, num_prompt + params.max_tokens)

    def _stop_ids(self, params: SamplingParams) -> frozenset[int]:
        eos = frozenset() if params.ignore_eos else self.eos_ids
        return eos | frozenset(params.stop_token_ids)
