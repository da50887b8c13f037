"""Ends requests whose time is over: their own timeout, or the longest wait in the queue."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from tandem.errors import RequestTimeoutError
from tandem.messages import Refused
from tandem.request import SamplingParams

FEW = 1024


class Deadline(NamedTuple):
    """When a request ends unless it has before; ordered by time."""

    at: float
    """By `time.monotonic`."""
    request_id: str
    seconds: float
    queued: bool
    """It holds for a request that still waits."""

    def __str__(self) -> str:
        if self.queued:
            return (
                f"The request waited for {self.seconds:g} s, the longest that queue_timeout "
                "allows: try again later."
            )
        return (
            f"The request's timeout of {self.seconds:g} s is over: allow more time, or ask for "
            "fewer tokens."
        )

    def refusal(self) -> Refused:
        """What the request is answered."""
        return Refused(self.request_id, RequestTimeoutError.__name__, str(self))


class Here(Protocol):
    """The requests of one place, by id."""

    def __contains__(self, request_id: object, /) -> bool: ...

    def waits(self, request_id: str) -> bool:
        """Whether a request is here and has not been begun."""
        ...


class Deadlines:
    """Of the requests in one place."""

    def __init__(self, queue_timeout: float | None) -> None:
        self._queue_timeout = queue_timeout
        self._heap: list[Deadline] = []
        self._most = FEW

    def add(self, request_id: str, params: SamplingParams, arrival: float) -> None:
        """A request that was taken. arrival: by `time.monotonic`."""
        for seconds, queued in ((params.timeout, False), (self._queue_timeout, True)):
            if seconds is not None:
                heapq.heappush(self._heap, Deadline(arrival + seconds, request_id, seconds, queued))

    def pause(self) -> float | None:
        """Seconds until the next one is over; None: there is none."""
        return max(0.0, self._heap[0].at - time.monotonic()) if self._heap else None

    def over(self, here: Here) -> Iterator[Deadline]:
        """Those that are over now, of requests that are here."""
        if len(self._heap) > self._most:
            self._forget(here)
        now = time.monotonic()
        while self._heap and self._heap[0].at <= now:
            deadline = heapq.heappop(self._heap)
            name = deadline.request_id
            holds = here.waits(name) if deadline.queued else name in here
            if holds:
                yield deadline

    def _forget(self, here: Here) -> None:
        """Drops those of requests that have ended, once in a while."""
        self._heap = [one for one in self._heap if one.request_id in here]
        heapq.heapify(self._heap)
        self._most = max(FEW, 2 * len(self._heap))
