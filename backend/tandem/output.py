"""Turns verified tokens into what the user sees: where a request ends, its text, its logprobs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from tandem.drafting import Verdict
from tandem.metrics import (
    BETWEEN_TOKENS,
    END_TO_END,
    FIRST_TOKEN,
    GENERATED_TOKENS,
    PROMPT_TOKENS,
    Meters,
)
from tandem.request import Request, RequestOutput, TokenLogprobs
from tandem.tokenizer import StopFinder, TokenDecoder, Tokenizer


class OutputStream:
    """The output side of one request."""

    def __init__(self, request: Request, tokenizer: Tokenizer, meters: Meters) -> None:
        params = request.params
        self.request = request
        self.meters = meters
        self._last: float | None = None  # when the last tokens came
        self.tokenizer = tokenizer
        self.decoder = TokenDecoder(tokenizer, request.tokens, params.skip_special_tokens)
        self.stops = StopFinder(params.stop, params.include_stop_str_in_output)

    def append(self, verdict: Verdict, logprobs: Sequence[TokenLogprobs]) -> RequestOutput:
        """Commits the verdict's tokens to the request, up to where it ends."""
        request = self.request
        text, count = self._commit(verdict.tokens)
        if request.finish_reason is not None:
            text += self._finish()
        self._meter(count)
        if logprobs:
            request.cumulative_logprob += sum(
                entry.entries[entry.sampled][0] for entry in logprobs[:count]
            )
        return RequestOutput(
            request.id,
            text=text,
            token_ids=verdict.tokens[:count],
            drafted=[index < len(verdict.path) for index in range(count)],
            logprobs=list(logprobs[:count]),
            finish_reason=request.finish_reason,
            num_prompt_tokens=request.num_prompt,
            cumulative_logprob=request.cumulative_logprob,
            stats=request.stats,
        )

    def _meter(self, count: int) -> None:
        request, now = self.request, time.monotonic()
        if count:
            self.meters.count(GENERATED_TOKENS, count)
            if self._last is not None:
                self.meters.observe(BETWEEN_TOKENS, (now - self._last) / count, count)
            else:
                self._meter_first(now)
            self._last = now
        if request.finish_reason is not None:
            self.meters.observe(END_TO_END, now - request.arrival)

    def _meter_first(self, now: float) -> None:
        self.meters.count(PROMPT_TOKENS, self.request.num_prompt)
        self.meters.observe(FIRST_TOKEN, now - self.request.arrival)

    def abort(self) -> RequestOutput:
        """The last word on a request that is taken back."""
        self.request.finish_reason = "abort"
        return RequestOutput(
            self.request.id,
            finish_reason="abort",
            num_prompt_tokens=self.request.num_prompt,
            stats=self.request.stats,
        )

    def _commit(self, tokens: Sequence[int]) -> tuple[str, int]:
        """Appends tokens until one ends the request; the text they show and their number."""
        request = self.request
        step = 1 if request.params.stop else len(tokens) or 1  # which completes a stop string?
        text = ""
        for first in range(0, len(tokens), step):
            taken, hidden = self._take(tokens[first : first + step])
            shown, found = self._show(taken[: len(taken) - hidden])
            text += shown
            if found:
                request.finish_reason = "stop"
            if request.finish_reason is not None:
                return text, first + len(taken)
        return text, len(tokens)

    def _take(self, tokens: Sequence[int]) -> tuple[Sequence[int], int]:
        """Appends tokens as far as ids and lengths allow; how many at the end stay unseen."""
        request = self.request
        for index, token in enumerate(tokens):
            request.tokens.append(token)
            if token in request.stop_ids:
                request.finish_reason = "stop"
                hidden = 0 if request.params.include_stop_str_in_output else 1
                return tokens[: index + 1], hidden
            if len(request.tokens) >= request.max_total:
                request.finish_reason = "length"
                return tokens[: index + 1], 0
        return tokens, 0

    def _show(self, tokens: Sequence[int]) -> tuple[str, bool]:
        text = self.decoder.push(tokens)
        if self.request.num_output < self.request.params.min_tokens:
            return self.stops.flush() + text, False
        return self.stops.push(text)

    def _finish(self) -> str:
        """The rest of the text, unless a stop string cut it off."""
        request: Request = self.request
        rest = self.decoder.flush()
        if request.finish_reason == "stop" and request.tokens[-1] not in request.stop_ids:
            return ""
        shown, found = self.stops.push(rest)
        if found:
            request.finish_reason = "stop"
            return shown
        return shown + self.stops.flush()


class Streams(dict[str, OutputStream]):
    """Of the requests that are in an engine, by id."""

    def waits(self, request_id: str) -> bool:
        """Whether a request is here and has not been begun."""
        stream = self.get(request_id)
        return stream is not None and stream.request.admitted is None


def gather_logprobs(
    logits: Tensor, tokens: Sequence[int], count: int, tokenizer: Tokenizer
) -> list[TokenLogprobs]:
    """Log-probabilities of the model's own distribution at rows [T, V]: the `count` best and
    the chosen token's."""
    logprobs = logits.log_softmax(-1)
    best_values, best_ids = logprobs.topk(count, -1)
    entries: list[TokenLogprobs] = []
    for row, token in enumerate(tokens):
        line = logprobs[row]
        own = line[token]
        rank = int((line > own).sum()) + 1
        values = best_values[row].tolist()
        found = {  # equal values have equal ranks
            i: (v, sum(other > v for other in values) + 1, tokenizer.decode([i], False))
            for i, v in zip(best_ids[row].tolist(), values, strict=True)
        }
        found.setdefault(token, (float(own), rank, tokenizer.decode([token], False)))
        entries.append(TokenLogprobs(token, found))
    return entries
