"""Peers from the outside: where their interpreters are, and their processes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

from benchmarks.common import CACHE, ROOT, Batch, Run, digest, made_once
from benchmarks.peers.worker import Answer, Case

STOP_S = 30
LOOK_S, QUIET, SETTLE_S = 0.05, 0.2, 5.0


class Software(NamedTuple):
    """An engine that can be measured."""

    name: str
    environment: str
    """Folder of the virtual environment."""
    module: str
    exported: bool = False
    """It reads checkpoints in OpenVINO's format."""


TANDEM = Software("Tandem", ".venv", "tandem_engine")
OPENVINO = Software("OpenVINO GenAI", ".venv-openvino", "openvino_genai_engine", exported=True)
VLLM = Software("vLLM", ".venv-vllm", "vllm_engine")
TRANSFORMERS = Software("transformers", ".venv", "transformers_engine")


class Peer:
    """One engine with one method, loaded; it waits without spinning until it is asked."""

    def __init__(self, software: Software, case: Case, log: Path) -> None:
        """Waits until it is loaded. Raises `RuntimeError` where it does not load."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [
                    ROOT / software.environment / "bin" / "python",
                    "-m",
                    f"benchmarks.peers.{software.module}",
                    json.dumps(case),
                ],
                cwd=ROOT,
                env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.answers: dict[tuple[int, ...], list[int]] = {}
        """What it wrote behind each prompt, the last time."""
        self.version: str = self._answer()["version"]

    def run(self, batch: Batch, new_tokens: int) -> Run:
        """Generates, greedily, exactly so many tokens for each prompt."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": batch, "new_tokens": new_tokens}) + "\n")
        self._process.stdin.flush()
        found = self._answer()
        settle(psutil.Process(self._process.pid), self._log)
        answer = Answer(*found["answer"])
        lengths = {len(ids) for ids in answer.ids}
        if lengths != {new_tokens}:
            raise RuntimeError(f"It wrote {lengths} tokens where {new_tokens} were asked for.")
        for prompt, ids in zip(batch, answer.ids, strict=True):
            self.answers[tuple(prompt)] = ids
        tokens = len(batch) * new_tokens
        return Run(tokens, found["seconds"], answer.drafted, answer.accepted, answer.rounds)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(STOP_S)  # until its last words are in the log
            raise RuntimeError(f"A peer has ended: see {self._log}.")
        return json.loads(line)

    def close(self) -> None:
        """Ends it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def settle(root: psutil.Process, log: Path) -> None:
    """Waits until it and the processes below it rest: some spin for a second yet, and whoever is
    next would have that core less."""
    end = time.monotonic() + SETTLE_S
    before = _busy_s(root)
    while time.monotonic() < end:
        time.sleep(LOOK_S)
        now = _busy_s(root)
        if now - before < QUIET * LOOK_S:
            return
        before = now
    raise RuntimeError(f"A process does not rest after it has answered: see {log}.")


def _busy_s(root: psutil.Process) -> float:
    """Processor time of a process and of those below it, so far."""
    spent = 0.0
    for one in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            spent += sum(one.cpu_times()[:2])
    return spent


def checkpoint(software: Software, folder: Path) -> Path:
    """A checkpoint in the format that this peer reads, exported once."""
    if not software.exported:
        return folder
    export_command: list[str | Path] = [
        ROOT / software.environment / "bin" / "optimum-cli",
        *("export", "openvino", "--model", folder, "--weight-format", "fp16"),
        *("--task", "text-generation-with-past"),
    ]

    def export(out: Path) -> None:
        print(f"exporting {folder.name} for {software.name}")
        subprocess.run([*export_command, out], check=True, capture_output=True)

    return made_once(CACHE / "openvino" / f"{folder.name}-{digest(folder)}", export)
