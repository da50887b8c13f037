"""`tandem generate`: completions on the terminal, from an engine without a server."""

import queue
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tandem.config import EngineConfig
from tandem.errors import InvalidRequestError, TandemError
from tandem.request import RequestOutput, SamplingParams
from tandem.service import EngineService


def run(prompts: Sequence[str], parameters: dict[str, str], sampling: dict[str, Any]) -> None:
    """Streams a completion of every prompt to stdout, its figures to stderr."""
    notes = Console(stderr=True, highlight=False)
    # Both before the models are loaded: a bad value is reported at once.
    config = EngineConfig.from_triton_parameters(parameters, Path.cwd())
    params = SamplingParams(**sampling)
    for number, prompt in enumerate(prompts, 1):
        _check_text(number, prompt)
    with notes.status("Loading the models"):
        service = EngineService(config)
    try:
        for prompt in prompts:
            print(prompt, end="", flush=True)
            began = time.perf_counter()
            count, last = 0, None
            for output in _stream(service, prompt, params):
                print(output.text, end="", flush=True)
                count += len(output.token_ids)
                last = output
            print()
            if last:
                seconds = time.perf_counter() - began
                notes.print(_figures(last, count, seconds), style="dim", soft_wrap=True)
    finally:
        service.stop()
    sys.stdout.flush()


def _check_text(number: int, prompt: str) -> None:
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"Prompt {number} is no Unicode text: write its character {error.start + 1} as UTF-8."
        ) from None


class _Answers:
    """A sink that can be read."""

    def __init__(self) -> None:
        self._arrived: queue.SimpleQueue[RequestOutput | TandemError] = queue.SimpleQueue()
        self.on_output = self._arrived.put
        self.on_error = self._arrived.put

    def get(self) -> RequestOutput:
        answer = self._arrived.get()
        if isinstance(answer, TandemError):
            raise answer
        return answer


def _stream(service: EngineService, prompt: str, params: SamplingParams) -> Iterator[RequestOutput]:
    answers = _Answers()
    service.submit(prompt, params, answers)
    while True:
        output = answers.get()
        yield output
        if output.finished:
            return


def _figures(last: RequestOutput, count: int, seconds: float) -> str:
    stats = last.stats
    line = f"{count} tokens, {count / seconds:.1f} tokens/s, {last.finish_reason}"
    if stats.drafted:
        line += (
            f"; accepted {stats.accepted} of {stats.drafted} drafted "
            f"({stats.acceptance_rate:.0%}), {stats.mean_acceptance_length:.2f} tokens a round"
        )
    return line
