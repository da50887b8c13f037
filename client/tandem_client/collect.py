"""Adds the chunks of a stream up to a completion and times them."""

import time
from collections.abc import Callable

from tandem_client.types import Chunk, Completion, Timing


class Collector:
    """Create it when the request is sent, `add` every chunk, then ask for the `completion`."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started = clock()
        self._first: float | None = None
        self._last = self._started
        self._chunks: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        """Take one chunk at the moment it arrived."""
        self._last = self._clock()
        if self._first is None and chunk.num_tokens:
            self._first = self._last
        self._chunks.append(chunk)

    @property
    def started(self) -> bool:
        """Whether anything has arrived."""
        return bool(self._chunks)

    def completion(self) -> Completion:
        """The answer so far; a stream that was left early has no finish reason."""
        chunks = self._chunks
        last = chunks[-1] if chunks else Chunk()
        num_tokens = sum(chunk.num_tokens for chunk in chunks)
        return Completion(
            text="".join(chunk.text for chunk in chunks),
            token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
            drafted=tuple(mark for chunk in chunks for mark in chunk.drafted),
            num_tokens=num_tokens,
            finish_reason=last.finish_reason,
            logprobs=tuple(entry for chunk in chunks for entry in chunk.logprobs),
            num_input_tokens=chunks[0].num_input_tokens if chunks else None,
            request_id=last.request_id,
            stats=last.stats,
            timing=self._timing(num_tokens),
        )

    def _timing(self, num_tokens: int) -> Timing:
        total = self._last - self._started
        first = (self._first if self._first is not None else self._last) - self._started
        return Timing(first, total, num_tokens / total if total > 0 else 0.0)
