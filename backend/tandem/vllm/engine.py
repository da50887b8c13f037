"""vLLM as an engine: the same interface as `tandem.engine.NativeEngine` has towards the service.

vLLM's own process computes; here its event loop runs in a thread, and what a step brings goes
straight from vLLM's engine core to the same output side that the native engine has. So text, stop
strings, logprobs and finish reasons are one engine's as the other's.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from tandem.config import EngineConfig
from tandem.drafting import Verdict
from tandem.errors import ConfigError, InvalidRequestError, queue_full
from tandem.limits import Limits
from tandem.metrics import PREEMPTIONS, QUEUED, ROUNDS, Meters, Report
from tandem.output import OutputStream, Streams
from tandem.request import (
    Prompt,
    Request,
    RequestOutput,
    SamplingParams,
    SpeculationStats,
    TokenLogprobs,
)
from tandem.tokenizer import Tokenizer
from tandem.vllm.arguments import engine_arguments, sampling_arguments
from tandem.vllm.checks import first_sentence, load
from tandem.vllm.scheduler_meters import SchedulerMeters

Result = TypeVar("Result")
LONGEST_WAIT_S = 0.25  # for a step, in which requests' times may run out
SETTLED_S = 0.1  # behind a step's answers, what vLLM's scheduler says of it has come too


class _Streams(Streams):
    """vLLM tells that a request was begun with its first answer alone: which of the others wait
    follows from how many do, for they are begun in their order."""

    def __init__(self, scheduler: SchedulerMeters) -> None:
        super().__init__()
        self._scheduler = scheduler

    def waits(self, request_id: str) -> bool:
        if not super().waits(request_id):
            return False
        silent = [one.request for one in self.values() if one.request.admitted is None]
        silent.sort(key=lambda one: (one.params.priority, one.arrival))
        begun = silent[: len(silent) - self._scheduler.waiting]
        return all(one.id != request_id for one in begun)


class VllmEngine:
    """Speculative generation by vLLM."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises `ConfigError` where vLLM does not start, with its reason."""
        self.config = config
        self.shares_processor = load(config)
        self.tokenizer = Tokenizer(config.model)
        self._on_lost: Callable[[str], None] = lambda reason: None
        self._lost = ""
        self.meters = Meters()
        self._scheduler = SchedulerMeters(config.runners_with_kv, self.wake)
        self.streams: Streams = _Streams(self._scheduler)
        self._arrived: queue.SimpleQueue[Sequence[Any]] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True).start()
        try:
            self._vllm, self._tasks = self._wait(self._start())
        except Exception as error:  # vLLM raises whatever its parts do
            raise ConfigError(f"vLLM does not start: {first_sentence(error)}") from error
        self.limits = self._limits()
        self._warm_up()

    async def _start(self) -> tuple[Any, Any]:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = engine_arguments(self.config, self.shares_processor)
        engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs(**arguments), stat_loggers=[lambda *_: self._scheduler]
        )
        # Its output side is left out: ours takes every step's tokens as they come.
        engine.output_processor.process_outputs = self._arrive
        engine.output_processor.propagate_error = self._lose
        return engine, await engine.get_supported_tasks()

    def _warm_up(self) -> None:
        """Has vLLM compile now what ranks logprobs: it takes long, and all requests would wait."""
        first = SamplingParams(temperature=0, max_tokens=1, logprobs=1, ignore_eos=True)
        try:
            self.add(self.prepare([0], first, "warm-up"))
        except InvalidRequestError:
            return  # vLLM was told to rank none
        while not self.idle and not self._lost:
            self.step()
        if self._lost:
            raise ConfigError(f"vLLM does not start: {self._lost}.")
        self._wait(asyncio.sleep(SETTLED_S))
        self.meters = Meters()
        self._scheduler.take()

    def _limits(self) -> Limits:
        model = self._vllm.model_config
        named = model.try_get_generation_config().get("eos_token_id")
        ids = named if isinstance(named, list) else [named]
        eos = {*ids, self._vllm.renderer.get_eos_token_id()} - {None}
        methods = self.config.methods
        return Limits(model.get_vocab_size(), frozenset(eos), model.max_model_len, methods)

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _tell(self, work: Coroutine[Any, Any, None]) -> None:
        """Without waiting; a message that cannot be sent is the engine's end."""

        def look(done: Future[None]) -> None:
            error = done.exception()
            if error is not None:
                self._lose(error)

        asyncio.run_coroutine_threadsafe(work, self._loop).add_done_callback(look)

    # -- in vLLM's thread ----------------------------------------------------------------------

    def _arrive(self, outputs: Sequence[Any], *_: Any, **__: Any) -> Any:
        from vllm.v1.engine.output_processor import OutputProcessorOutput

        self._arrived.put(outputs)
        return OutputProcessorOutput(request_outputs=[], reqs_to_abort=[])

    def _lose(self, error: BaseException) -> None:
        name = type(error).__name__
        self._lost = f"vLLM's engine has ended ({name}: {first_sentence(error)})"
        self._on_lost(self._lost)
        self.wake()

    # -- requests ------------------------------------------------------------------------------

    def prepare(
        self, prompt: Prompt, params: SamplingParams, request_id: str, arrival: float | None = None
    ) -> Request:
        """A request, checked and tokenized. arrival: by `time.monotonic`; None: now. Called from
        any thread. Raises `InvalidRequestError`."""
        tokens = self.tokenizer.prompt(prompt, self.limits.max_model_len)
        return self.limits.request(request_id, tokens, params, arrival)

    def add(self, request: Request) -> None:
        """Hands a request to vLLM. Raises `InvalidRequestError` or `QueueFullError`."""
        waiting = len(self.streams) - self.config.max_num_seqs
        if waiting >= self.config.max_queue_size:
            raise queue_full(waiting)
        asked = self._asked(request)
        self.streams[request.id] = OutputStream(request, self.tokenizer, self.meters)
        self._tell(self._vllm.engine_core.add_request_async(asked))

    def _asked(self, request: Request) -> Any:
        """The request in vLLM's words, checked by vLLM."""
        from vllm import SamplingParams as VllmParams
        from vllm.inputs import tokens_input

        try:
            return self._vllm.input_processor.process_inputs(
                request.id,
                tokens_input(list(request.tokens)),
                VllmParams(**sampling_arguments(request)),
                supported_tasks=self._tasks,
                priority=request.params.priority,
            )
        except Exception as error:  # its checks raise types of their own
            raise InvalidRequestError(f"vLLM refuses it: {first_sentence(error)}") from None

    def abort(self, request_id: str) -> RequestOutput | None:
        """Drops a request at once; None if it is not (or no longer) here."""
        stream = self.streams.pop(request_id, None)
        if stream is None:
            return None
        self._tell(self._vllm.engine_core.abort_requests_async([request_id]))
        return stream.abort()

    @property
    def steps(self) -> int:
        """How many of vLLM's scheduler have ended, those that bring no answer too."""
        return self._scheduler.steps

    @property
    def idle(self) -> bool:
        """vLLM's scheduler has said so too: what is reported then is how things stay."""
        return not self.streams and self._scheduler.empty

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """`on_lost` is called with the reason, from another thread, should vLLM end."""
        self._on_lost = on_lost
        if self._lost:
            on_lost(self._lost)

    def wake(self) -> None:
        """Ends a `step` that waits: there is something to do before it."""
        self._arrived.put(())

    def step(self) -> list[RequestOutput]:
        """Waits for what vLLM's next step brings, but not for long."""
        answers: list[RequestOutput] = []
        try:
            arrived = self._arrived.get(timeout=LONGEST_WAIT_S)
        except queue.Empty:
            return answers
        for output in arrived:
            stream = self.streams.get(output.request_id)
            if stream is not None:  # else aborted meanwhile
                answers.append(self._take(stream, output))
        return answers

    def _take(self, stream: OutputStream, output: Any) -> RequestOutput:
        request, tokens = stream.request, output.new_token_ids
        self._see(request, output.events or ())
        before = request.stats
        if output.spec_decode_metrics is not None:
            request.stats = _stats(output.spec_decode_metrics)
        accepted = request.stats.accepted - before.accepted
        self.meters.count(ROUNDS, request.num_output > 0)  # its first token is the prompt's
        if request.stats.rounds > before.rounds:
            self.meters.round(request.stats.drafted - before.drafted, accepted)
        accepted = min(accepted, len(tokens))  # the end cuts some off
        verdict = Verdict(list(range(1, accepted + 1)), tokens)
        answer = stream.append(verdict, self._logprobs(output))
        if output.finish_reason is not None and not answer.finished:
            answer.finish_reason = request.finish_reason = "abort"  # vLLM gave it up
        if answer.finished:
            del self.streams[request.id]
            if output.finish_reason is None:  # a stop string: vLLM does not know it
                self._tell(self._vllm.engine_core.abort_requests_async([request.id]))
        return answer

    def _see(self, request: Request, events: Sequence[Any]) -> None:
        """What happened to it in vLLM's scheduler, whose clock is ours."""
        for event in events:
            if event.type.name == "SCHEDULED" and request.admitted is None:
                request.admitted = event.timestamp
                self.meters.observe(QUEUED, request.admitted - request.arrival)
            elif event.type.name == "PREEMPTED":
                self.meters.count(PREEMPTIONS)

    def _logprobs(self, output: Any) -> list[TokenLogprobs]:
        found = output.new_logprobs
        if found is None:
            return []
        rows = zip(
            found.logprob_token_ids.tolist(),
            found.logprobs.tolist(),
            found.sampled_token_ranks.tolist(),
            strict=True,
        )
        return [self._token_logprobs(ids, values, rank) for ids, values, rank in rows]

    def _token_logprobs(self, ids: list[int], values: list[float], rank: int) -> TokenLogprobs:
        """The first is the chosen token's, the others are the best ones in order."""
        ranks = [rank, *range(1, len(ids))]
        entries = {
            token: (value, place, self.tokenizer.decode([token], False))
            for token, value, place in zip(ids, values, ranks, strict=True)
        }
        return TokenLogprobs(ids[0], entries)

    def report(self) -> Report:
        """What was counted since the last report, and how things stand."""
        counts, times = self._scheduler.take()
        for name, count in counts.items():
            self.meters.count(name, count)
        for name, seconds in times:
            self.meters.observe(name, seconds)
        return self.meters.report(self._scheduler.gauges)

    def check_integrity(self) -> None:
        """vLLM's books are its own: blocks that it does not get back stay in its gauge."""


def _stats(metrics: Any) -> SpeculationStats:
    return SpeculationStats(
        drafted=metrics.num_draft_tokens,
        accepted=sum(count * times for count, times in enumerate(metrics.histogram)),
        rounds=sum(metrics.histogram),
    )
