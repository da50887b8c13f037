"""What rounds take, which vLLM does not say: a plug-in.

The workers' model runners time the target's pass with its verification, and drafting; on a GPU by
events, so that nobody waits for it. The times go with what a worker hands to the scheduler, and
from there, in whole microseconds under the names of our metrics, with the scheduler's own numbers,
in a mapping of theirs from names to numbers that only loggers read.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch

from tandem.metrics import DRAFTING, VERIFYING
from tandem.vllm.seams import Seam, troubles

logger = logging.getLogger(__name__)

RUNNER = "vllm.v1.worker.gpu_model_runner"
TIMES = "tandem_times"
"""What we add to a worker's output, ..."""
BEGUN, SPANS = "tandem_begun", "tandem_spans"
"""... and to its model runner."""
_EXECUTE = Seam(RUNNER, "GPUModelRunner.execute_model", ("self", "scheduler_output"))
_SAMPLE = Seam(RUNNER, "GPUModelRunner._sample", ("self", "logits", "spec_decode_metadata"))
_PROPOSE = Seam(RUNNER, "GPUModelRunner.propose_draft_token_ids", ("self", "scheduler_output"))
_ANSWER = Seam(RUNNER, "GPUModelRunner.sample_tokens", ("self", "grammar_output"))
_UPDATE = Seam(
    "vllm.v1.core.sched.scheduler",
    "Scheduler.update_from_output",
    ("self", "scheduler_output", "model_runner_output"),
)
_STATS = Seam(
    "vllm.v1.metrics.stats",
    "SchedulerStats",
    (
        "num_running_reqs",
        "num_waiting_reqs",
        "num_skipped_waiting_reqs",
        "num_kv_fetch_reqs_by_stage",
    ),
)
SEAMS = (_EXECUTE, _SAMPLE, _PROPOSE, _ANSWER, _UPDATE, _STATS)


def register() -> None:
    """The entry point. A rank that is forked has what was done in the core."""
    wrong = troubles(SEAMS)
    if wrong:
        logger.error("vLLM's rounds are not timed: %s.", "; ".join(wrong))
        return
    _EXECUTE.replace(_begun)
    _SAMPLE.replace(_timed(VERIFYING))
    _PROPOSE.replace(_timed(DRAFTING))
    _ANSWER.replace(_handed_over)
    _UPDATE.replace(_with_times)


def times_in(scheduler_stats: Any) -> dict[str, float]:
    """Seconds by metric, of what a scheduler's numbers bring."""
    brought = scheduler_stats.num_kv_fetch_reqs_by_stage
    return {name: brought[name] / 1e6 for name in (DRAFTING, VERIFYING) if name in brought}


class Span(NamedTuple):
    """A part of a round: its metric, and moments as `_now` gives them."""

    name: str
    begin: Any
    end: Any

    @property
    def over(self) -> bool:
        """Whether the device has come to its end."""
        return isinstance(self.end, float) or self.end.query()

    @property
    def seconds(self) -> float:
        """Of one that is over."""
        if isinstance(self.end, float):
            return float(self.end - self.begin)
        return float(self.begin.elapsed_time(self.end)) / 1e3


def _now(runner: Any) -> Any:
    if runner.device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _spans(runner: Any) -> deque[Span]:
    found: deque[Span] = vars(runner).setdefault(SPANS, deque())
    return found


def _begun(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def execute(runner: Any, *arguments: Any, **named: Any) -> Any:
        setattr(runner, BEGUN, _now(runner))
        return original(runner, *arguments, **named)

    return execute


def _timed(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What ends a part of a round; it began with the pass, if that is still under way."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def run(runner: Any, *arguments: Any, **named: Any) -> Any:
            begin = vars(runner).pop(BEGUN, None) or _now(runner)
            answer = original(runner, *arguments, **named)
            _spans(runner).append(Span(name, begin, _now(runner)))
            return answer

        return run

    return make


def _output_of(answer: Any) -> Any:
    """What goes to the scheduler, also of an answer that is still to be copied from a GPU."""
    return vars(answer).get("_model_runner_output", answer)


def _handed_over(original: Callable[..., Any]) -> Callable[..., Any]:
    """With what is over by now: on a GPU, of rounds before. A worker without a round hands over an
    output that others share, and which stays as it is."""

    @wraps(original)
    def sample_tokens(runner: Any, *arguments: Any, **named: Any) -> Any:
        before = len(_spans(runner))
        answer = original(runner, *arguments, **named)
        spans, times = _spans(runner), {}
        if len(spans) == before:
            return answer
        while spans and spans[0].over and spans[0].name not in times:
            span = spans.popleft()
            times[span.name] = round(1e6 * span.seconds)
        setattr(_output_of(answer), TIMES, times)
        return answer

    return sample_tokens


def _with_times(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def update(scheduler: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        answer = original(scheduler, scheduler_output, model_runner_output)
        times = getattr(model_runner_output, TIMES, {})
        for outputs in answer.values():
            if outputs.scheduler_stats is not None:
                outputs.scheduler_stats.num_kv_fetch_reqs_by_stage.update(times)
        return answer

    return update
