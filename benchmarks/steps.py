"""What a step takes: passes by their rows against the memory's limit, and the engine's own work.

`python -m benchmarks.steps` measures, for the demo target and larger ones of the same function, a
pass over 1 to 32 rows behind 256 tokens and behind passes over as many rows (over one row it reads
every weight once: its bytes a second are compared with what the machine reads), and for batches of
1 and 8 how much of a step is not spent in the models' passes. It writes
benchmarks/results/steps.json.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.bandwidth import BYTES, Reader
from benchmarks.common import MODELS, machine, prompts, save, show
from benchmarks.contenders import model_folder
from tandem import Engine, EngineConfig, SamplingParams
from tandem.attention.plan import Query
from tandem.drafting.chain import ChainProposer
from tandem.drafting.draft_model import DraftModel
from tandem.runners.parallel_runner import Runner

TARGETS = {"demo": None, "200 MB": 200, "600 MB": 600}
ROWS = (1, 2, 4, 8, 16, 32)
CONTEXT = 256
BATCHES = (1, 8)
BEFORE = 3
"""Passes over as many rows before each that is timed: in decoding, too, the caches hold what the
last such pass has left there."""
WARM_UP = 320  # steps, of which some are watched (`tandem.cpu.host_code`)


def main(
    repeats: Annotated[int, typer.Option(help="Turns; the median counts.")] = 15,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
) -> None:
    """Measures and reports."""
    torch.set_num_threads(threads)
    result: dict[str, Any] = {"machine": machine(), "passes": {}, "host": {}}
    reader = Reader(threads)
    for name, megabytes in TARGETS.items():
        folder = model_folder(megabytes)
        config = EngineConfig(model=folder, kv_cache_memory="256MiB", devices="cpu")
        with Engine(config) as engine:
            size = (folder / "model.safetensors").stat().st_size
            result["passes"][name] = _passes(engine.target, size, repeats, reader)
    _show_passes(result["passes"])
    for name in ("demo", "200 MB"):
        for method in ("none", "ngram", "draft_model"):
            for batch in BATCHES:
                found = _host(model_folder(TARGETS[name]), method, batch)
                result["host"][f"{name}, {method}, batch {batch}"] = found
    _show_host(result["host"])
    save("steps", result)


def _passes(runner: Runner, size: int, repeats: int, reader: Reader) -> dict[str, Any]:
    """Rows of all sizes in turns, so that all see the same machine."""
    blocks = list(range(1, 2 + (CONTEXT + max(ROWS)) // 16))
    runner.forward([1] * CONTEXT, [Query(blocks, 0, CONTEXT)])
    seconds: dict[int, list[float]] = {rows: [] for rows in ROWS}
    reads: list[float] = []
    for _ in range(repeats + 2):
        reads.append(reader.seconds())
        for rows in ROWS:
            query = Query(blocks, CONTEXT, rows)
            for _ in range(BEFORE):
                runner.forward([1] * rows, [query])
            start = time.perf_counter()
            runner.forward([1] * rows, [query])
            seconds[rows].append(time.perf_counter() - start)
    bandwidth = BYTES / statistics.median(reads[2:])
    medians = {rows: statistics.median(times[2:]) for rows, times in seconds.items()}
    return {
        "milliseconds": {str(rows): round(1e3 * time, 3) for rows, time in medians.items()},
        "read_gb_per_s": round(bandwidth / 1e9, 1),
        "gb_per_s": round(size / medians[1] / 1e9, 1),
        "of_read_bandwidth": round(size / medians[1] / bandwidth, 3),
    }


class _Clock:
    """Seconds spent in calls of a function."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            start = time.perf_counter()
            found = call(*arguments)
            self.seconds += time.perf_counter() - start
            return found

        return run


def _host(model: Path, method: str, batch: int, new_tokens: int = 192) -> dict[str, float]:
    """Of steps that only decode: their time, and how much of it no pass takes."""
    config = EngineConfig(
        model=model,
        draft_model=MODELS / "draft" if method == "draft_model" else None,
        speculative_method=method,
        adaptive_speculation=False,
        devices="cpu",
        kv_cache_memory="256MiB",
    )
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    texts = prompts("heldout", batch)
    with Engine(config) as engine:
        while engine.steps < WARM_UP:
            engine.generate(texts, params)
        passes = _timed_passes(engine)
        for text in texts:
            engine.add_request(text, params)
        steps = _decoding_steps(engine, passes)
    return {
        "step_ms": round(1e3 * statistics.mean(steps), 3),
        "host_share": round(1 - passes.seconds / sum(steps), 4),
    }


def _timed_passes(engine: Engine) -> _Clock:
    """What all passes of target and draft take from now on."""
    runners = [engine.target]
    proposer = engine.proposer
    if isinstance(proposer, ChainProposer) and isinstance(proposer.guesser, DraftModel):
        runners.append(proposer.guesser.runner)
    clock = _Clock()
    for runner in runners:
        stack = getattr(runner, "by_kernels", None)
        # the kernels' own calls, or all of a pass where torch computes it
        holder, names = (stack, ("_forward", "_chains")) if stack else (runner, ("forward",))
        for name in names:
            setattr(holder, name, clock.timed(getattr(holder, name)))
    return clock


@torch.inference_mode()  # as the engine's own process has it
def _decoding_steps(engine: Engine, passes: _Clock) -> list[float]:
    """Seconds of each step after those that read prompts, until all is done."""
    steps: list[float] = []
    while not engine.idle:
        before = engine.stats()
        start = time.perf_counter()
        engine.step()
        if before.waiting or not before.running:  # it read prompts
            passes.seconds = 0.0
        else:
            steps.append(time.perf_counter() - start)
    return steps


def _show_passes(found: dict[str, Any]) -> None:
    rows = [
        (
            name,
            *(f"{of['milliseconds'][str(count)]:.2f}" for count in ROWS),
            f"{of['milliseconds']['16'] / of['milliseconds']['1']:.2f}×",
            f"{of['gb_per_s']:.1f}",
            f"{of['of_read_bandwidth']:.0%}",
        )
        for name, of in found.items()
    ]
    columns = ["", *(f"{count}" for count in ROWS), "16 by 1", "GB/s", "of what is read"]
    show("milliseconds of a pass, by its rows", columns, rows)


def _show_host(found: dict[str, Any]) -> None:
    rows = [(name, f"{of['step_ms']:.2f}", f"{of['host_share']:.1%}") for name, of in found.items()]
    show("steps that only decode", ["", "ms", "not in a pass"], rows)


if __name__ == "__main__":
    typer.run(main)
