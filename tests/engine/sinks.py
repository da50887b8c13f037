"""Sinks that can be waited for, and small helpers around services and their processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tandem import EngineConfig, RequestOutput, SamplingParams
from tandem.errors import TandemError
from tandem.service import EngineService
from tests.engine.conftest import ENGINE_DEFAULTS

WAIT_S = 60
LONG = SamplingParams(max_tokens=None, seed=1)
SHORT = SamplingParams(max_tokens=8, temperature=0)


class Answer:
    """A sink that keeps what it is told and can be waited for."""

    def __init__(self) -> None:
        self.outputs: list[RequestOutput] = []
        self.errors: list[TandemError] = []
        self.begun, self.over = threading.Event(), threading.Event()
        self.calls_after_the_end = 0

    def on_output(self, output: RequestOutput) -> None:
        self.calls_after_the_end += self.over.is_set()
        self.outputs.append(output)
        self.begun.set()
        if output.finished:
            self.over.set()

    def on_error(self, error: TandemError) -> None:
        self.calls_after_the_end += self.over.is_set()
        self.errors.append(error)
        self.begun.set()
        self.over.set()

    def wait(self) -> Answer:
        assert self.over.wait(WAIT_S), "no end came"
        return self

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs)

    @property
    def reason(self) -> str | None:
        return self.outputs[-1].finish_reason if self.outputs else None


def submit(one: EngineService, prompt: str | list[int], params: SamplingParams = SHORT) -> Answer:
    answer = Answer()
    answer.id = one.submit(prompt, params, answer)  # type: ignore[attr-defined]
    return answer


def until(condition: Callable[[], bool], seconds: int = WAIT_S) -> None:
    """Waits for something that no event announces."""
    pause = threading.Event()
    for _ in range(seconds * 50):
        if condition():
            return
        pause.wait(0.02)
    pytest.fail("it did not happen in time")


def gone(pid: int) -> bool:
    """Whether the process has ended (whoever inherits orphans may leave them as zombies)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children()}


def config_of(target: Path, **parameters) -> EngineConfig:
    defaults = ENGINE_DEFAULTS | {"max_num_seqs": 4, "max_queue_size": 40}
    return EngineConfig(**defaults | {"model": target} | parameters)
