"""Answers on their way out of the engine's process, fewer and larger where they cost speed."""

from __future__ import annotations

import time
from collections.abc import Callable

from tandem.messages import Outputs
from tandem.request import RequestOutput

# On its way through the service, Triton and a client an answer takes about a millisecond of
# processor time, and an engine that computes on the processor loses it (docs/performance_log.md).
HOLD_AN_ANSWER_S = 0.01  # after each answer sent: a tenth of one core's time at most
LONGEST_HOLD_S = 0.1


class Outbox:
    """Collects what steps bring and sends it as one message once the hold is over.

    A request's first and last answers are sent at once, and all others with them.
    """

    def __init__(self, send: Callable[[Outputs], None], shares_processor: bool) -> None:
        self._send = send
        self._hold_s = HOLD_AN_ANSWER_S if shares_processor else 0.0
        self._held: dict[str, RequestOutput] = {}
        self._begun: set[str] = set()  # requests that had their first answer, but not their last
        self._hold_until = 0.0

    def put(self, outputs: list[RequestOutput]) -> None:
        """Takes a step's outputs; sends them, or merges them with what is held."""
        urgent = False
        for output in outputs:
            urgent |= self._is_urgent(output)
            if output.request_id in self._held:
                self._held[output.request_id].merge(output)
            else:
                self._held[output.request_id] = output
        if self._held and (urgent or time.monotonic() >= self._hold_until):
            self._flush()

    def drop(self, request_id: str) -> None:
        """Forgets a request that ends without a last answer."""
        self._held.pop(request_id, None)
        self._begun.discard(request_id)

    def _is_urgent(self, output: RequestOutput) -> bool:
        if output.finished:
            self._begun.discard(output.request_id)
            return True
        first = output.request_id not in self._begun
        self._begun.add(output.request_id)
        return first

    def _flush(self) -> None:
        held, self._held = list(self._held.values()), {}
        self._send(Outputs(held))
        hold = min(len(held) * self._hold_s, LONGEST_HOLD_S)
        self._hold_until = time.monotonic() + hold
