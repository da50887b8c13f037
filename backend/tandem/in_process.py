"""The engine in the process that makes it: prompts in, completions out.

Whichever `generate` or `stream` is waiting steps the engine for all that are under way.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Self

from tqdm import tqdm

from tandem.config import EngineConfig
from tandem.deadlines import Deadlines
from tandem.engine import NativeEngine
from tandem.errors import InvalidRequestError, RequestTimeoutError
from tandem.request import Prompt, RequestOutput, SamplingParams

PROGRESS_FROM = 8  # prompts in one call from which on a bar is shown


class Engine(NativeEngine):
    """Completes prompts; to be shut down, or used in a `with`.

    Its ranks end with the thread that made it, should that end without doing so.
    """

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._unread: dict[str, RequestOutput | None] = {}
        """What came for each request that was begun here, and has not been read."""
        self._deadlines = Deadlines(config.queue_timeout)
        self._late: dict[str, RequestTimeoutError] = {}
        """Requests whose time ran out."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Completes prompts (strings or lists of ids) and returns whole outputs, in order. Raises
        `RequestTimeoutError` where the time of one runs out."""
        work = self._checked(_as_prompts(prompts), params)
        left = iter(work)
        begun: list[str] = []
        running: set[str] = set()
        bar = tqdm(total=len(work), disable=len(work) < PROGRESS_FROM, unit="prompt")
        try:
            while len(begun) < len(work) or running:
                for tokens, one in itertools.islice(left, self._room()):
                    begun.append(self._begin(tokens, one))
                    running.add(begun[-1])
                self._advance()
                self._check_time(*running)
                ended = {request_id for request_id in running if request_id not in self.streams}
                running -= ended
                bar.update(len(ended))
            outputs = [self._unread[request_id] for request_id in begun]
            return [output for output in outputs if output is not None]
        finally:
            bar.close()
            for request_id in begun:
                self._end(request_id)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Yields what each round adds to one completion; leaving early aborts it. Raises
        `RequestTimeoutError` where its time runs out."""
        request_id = self._begin(prompt, params or SamplingParams())
        try:
            while (output := self._unread[request_id]) is not None or request_id in self.streams:
                self._unread[request_id] = None
                if output is None:
                    self._advance()
                    self._check_time(request_id)
                else:
                    yield output
        finally:
            self._end(request_id)

    def _checked(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[tuple[list[int], SamplingParams]]:
        """Each prompt with its parameters. What is wrong with any is said before one is begun."""
        each = (
            params if isinstance(params, Sequence) else [params or SamplingParams()] * len(prompts)
        )
        if len(each) != len(prompts):
            raise InvalidRequestError(
                f"There are {len(prompts)} prompts but {len(each)} SamplingParams: give one for "
                "all or one a prompt."
            )
        work = [
            (self.tokenizer.prompt(prompt, self.limits.max_model_len), one)
            for prompt, one in zip(prompts, each, strict=True)
        ]
        for tokens, one in work:
            self.limits.check(tokens, one)
        return work

    def _room(self) -> int:
        """Preempted requests may fill the queue beyond its size."""
        return max(0, self.config.max_queue_size - len(self.scheduler.waiting))

    def _begin(self, prompt: Prompt, params: SamplingParams) -> str:
        request_id = self.add_request(prompt, params)
        self._unread[request_id] = None
        self._deadlines.add(request_id, params, time.monotonic())
        return request_id

    def _advance(self) -> None:
        """A step; every `generate` and `stream` under way finds its own outputs in `_unread`."""
        for output in self.step():
            unread = self._unread.get(output.request_id)
            if unread is not None:
                unread.merge(output)
            elif output.request_id in self._unread:
                self._unread[output.request_id] = output
        for deadline in self._deadlines.over(self.streams):
            self._late[deadline.request_id] = RequestTimeoutError(str(deadline))
            self.abort(deadline.request_id)

    def _check_time(self, *request_ids: str) -> None:
        for request_id in request_ids:
            if request_id in self._late:
                raise self._late[request_id]

    def _end(self, request_id: str) -> None:
        self.abort(request_id)
        self._unread.pop(request_id, None)
        self._late.pop(request_id, None)


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many: a list of ints is one."""
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
