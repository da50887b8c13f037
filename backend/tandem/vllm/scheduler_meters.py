"""What vLLM's scheduler says of itself, step by step, as numbers for /metrics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tandem.metrics import (
    KV_USAGE,
    PREFIX_HITS,
    PREFIX_QUERIES,
    RUNNING,
    WAITING,
    Key,
)
from tandem.vllm.round_times import times_in


class SchedulerMeters:
    """A stat logger of vLLM's; it is called in vLLM's thread."""

    def __init__(self, runners: Sequence[str], on_empty: Callable[[], None]) -> None:
        """runners: those whose layers vLLM's KV cache holds: a block is in use by each of them.
        `on_empty` is called when the scheduler says that it has no requests, as it does behind
        the last one's end or abort."""
        self._runners = runners
        self._on_empty = on_empty
        self.gauges: dict[Key, float] = {}
        self.steps = 0
        """How many have ended."""
        self._counts: Counter[str] = Counter()
        self._times: list[tuple[str, float]] = []
        self._lock = threading.Lock()

    @property
    def empty(self) -> bool:
        """Whether the scheduler's last word was that it has no requests."""
        return not any(self.gauges.get(Key(name)) for name in (RUNNING, WAITING))

    @property
    def waiting(self) -> int:
        """Requests that it had not begun when it spoke last."""
        return int(self.gauges.get(Key(WAITING), 0))

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """After a step."""
        if scheduler_stats is None:
            return
        self.steps += 1
        self.gauges = {
            Key(RUNNING): scheduler_stats.num_running_reqs,
            Key(WAITING): scheduler_stats.num_waiting_reqs,
        } | {Key(KV_USAGE, one): scheduler_stats.kv_cache_usage for one in self._runners}
        cached = scheduler_stats.prefix_cache_stats
        with self._lock:
            self._counts.update({PREFIX_QUERIES: cached.queries, PREFIX_HITS: cached.hits})
            self._times += times_in(scheduler_stats).items()
        if self.empty:
            self._on_empty()

    def take(self) -> tuple[Counter[str], list[tuple[str, float]]]:
        """What has come together since the last time: counts, and seconds of rounds' parts."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            times, self._times = self._times, []
        return counts, times

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    def log(self) -> None:
        """Nothing to say."""

    def record_sleep_state(self, *_: Any, **__: Any) -> None:
        """It does not sleep."""
