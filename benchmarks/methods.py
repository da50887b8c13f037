"""Every method of speculation on the demo target: batch 1 and 8, chain and tree, greedy.

`python -m benchmarks.methods` prints a table for held-out and one for repetitive prompts, and
writes benchmarks/results/methods.json. A target pass is the time of the target's forward, a draft's
cost what the proposer takes in the same round, reading the target's hidden states included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any, NamedTuple, cast

import torch
import typer

from benchmarks.common import (
    MODELS,
    Batch,
    Contender,
    Run,
    interleave,
    machine,
    prompts,
    save,
    show,
    summarized,
)
from tandem import Engine, EngineConfig, SamplingParams
from tandem.runners.parallel_runner import Runner
from tandem.tokenizer import Tokenizer

KINDS = ("heldout", "repetitive")
BATCHES = (1, 8)


class Setting(NamedTuple):
    """A method as it is configured."""

    method: str
    tokens: int
    tree: int | list[list[int]] | None = None

    @property
    def title(self) -> str:
        """In the table."""
        shape = "chain" if self.tree is None else "tree"
        return f"{self.method}, {shape} of {self.tokens}" if self.tokens else self.method


# What `tandem fit-tree` found for the shipped heads on other prompts.
MEDUSA = [[0], [0, 0], [0, 0, 0], [1], [0, 1], [2], [1, 0], [0, 0, 1], [0, 0, 0, 0], [0, 2]]
MEDUSA += [[0, 1, 0], [0, 3]]
SETTINGS = (
    Setting("none", 0),
    Setting("ngram", 8),
    Setting("suffix", 16),
    Setting("suffix", 16, 1),
    Setting("draft_model", 4),
    Setting("draft_model", 12, 3),
    Setting("eagle3", 4),
    Setting("eagle3", 12, 3),
    Setting("mtp", 4),
    Setting("mtp", 12, 3),
    Setting("medusa", 4),
    Setting("medusa", len(MEDUSA), MEDUSA),
    Setting("mlp_speculator", 4),
    Setting("mlp_speculator", 12, 3),
)


class _TimedTarget:
    """A runner, and how long its passes take."""

    def __init__(self, runner: Runner, meter: Meter) -> None:
        self._runner = runner
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def forward(self, *arguments: Any) -> Any:
        start = time.perf_counter()
        found = self._runner.forward(*arguments)
        self._meter.target_s += time.perf_counter() - start
        self._meter.passes += 1
        return found


class Meter:
    """Times an engine's drafting and its target.

    All engines have the same target: two copies of one model, at other places in memory, may differ
    by a fifth in speed. They take turns, and nothing of a turn is left in its KV cache.
    """

    def __init__(self, engine: Engine, target: Runner) -> None:
        self.engine = engine
        self.draft_s = self.target_s = 0.0
        self.passes = 0
        for name in ("propose", "absorb", "observe"):
            method = getattr(engine.proposer, name)
            setattr(engine.proposer, name, self._drafting(method))
        engine.target = cast(Runner, _TimedTarget(target, self))

    def _drafting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            found = call(*arguments, **named)
            self.draft_s += time.perf_counter() - start
            return found

        return timed

    @property
    def share(self) -> float:
        """Of a draft in a target pass."""
        return self.draft_s / self.target_s


def main(
    count: Annotated[int, typer.Option(help="Prompts of each kind.")] = 16,
    new_tokens: Annotated[int, typer.Option(help="Tokens generated a prompt.")] = 96,
    repeats: Annotated[int, typer.Option(help="Rounds; the median counts.")] = 3,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
    only: Annotated[str, typer.Option(help="Settings whose title holds this, and none.")] = "",
) -> None:
    """Measures and reports."""
    torch.set_num_threads(threads)
    tokenizer = Tokenizer(MODELS / "target")
    chosen = [one for one in SETTINGS if only in one.title or one.method == "none"]
    result: dict[str, Any] = {"machine": machine(), "new_tokens": new_tokens}
    with ExitStack() as stack:
        engines = {one.title: stack.enter_context(_engine(one)) for one in chosen}
        target = next(iter(engines.values())).target
        meters = {title: Meter(engine, target) for title, engine in engines.items()}
        texts = {kind: [tokenizer.encode(text) for text in prompts(kind, count)] for kind in KINDS}
        for kind in KINDS:
            result[kind] = _measure(kind, meters, texts[kind], new_tokens, repeats)
    save("methods", result)


def _engine(setting: Setting) -> Engine:
    folder = MODELS / setting.method.replace("draft_model", "draft")
    return Engine(
        EngineConfig(
            model=MODELS / "target",
            draft_model=folder if folder.exists() else None,
            speculative_method=setting.method,
            num_speculative_tokens=setting.tokens or 1,
            speculative_tree=setting.tree,
            adaptive_speculation=False,
            enable_prefix_caching=False,
            suffix_decoding_max_cached_requests=0,  # or a repeat would remember its answer
            kv_cache_memory="64MiB",
            devices="cpu",
        )
    )


def _batches(texts: list[list[int]], size: int) -> list[Batch]:
    return [texts[start : start + size] for start in range(0, len(texts), size)]


def _measure(
    kind: str, meters: dict[str, Meter], texts: list[list[int]], new_tokens: int, repeats: int
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for batch in BATCHES:
        inputs = _batches(texts, batch)
        for meter in meters.values():
            meter.draft_s, meter.target_s, meter.passes = 0.0, 0.0, 0
        contenders = {title: _contender(meter, new_tokens) for title, meter in meters.items()}
        found = summarized(interleave(contenders, inputs, repeats))
        for title, summary in found.items():
            result.setdefault(title, {})[f"batch {batch}"] = {
                "tokens_per_second": round(summary.tokens_per_second, 1),
                "acceptance_rate": round(summary.acceptance_rate, 3),
                "draft_share": round(meters[title].share, 3),
            }
            if batch == 1:  # more requests end at different passes
                result[title]["mean_acceptance_length"] = round(summary.tokens_per_round, 3)
    _show(kind, result)
    return result


def _contender(meter: Meter, new_tokens: int) -> Contender:
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)

    def run(batch: Batch) -> Run:
        start, passes = time.perf_counter(), meter.passes
        outputs = meter.engine.generate(batch, params)
        seconds = time.perf_counter() - start
        stats = [output.stats for output in outputs]
        return Run(
            sum(len(output.token_ids) for output in outputs),
            seconds,
            sum(one.drafted for one in stats),
            sum(one.accepted for one in stats),
            meter.passes - passes - 1,  # the first reads the prompt
        )

    return run


def _show(kind: str, result: dict[str, Any]) -> None:
    bases = [result["none"][f"batch {batch}"]["tokens_per_second"] for batch in BATCHES]
    rows = []
    for title, batches in result.items():
        one, eight = batches["batch 1"], batches["batch 8"]
        speeds = [
            (of["tokens_per_second"], plain) for of, plain in zip((one, eight), bases, strict=True)
        ]
        rows.append(
            (
                title,
                f"{batches['mean_acceptance_length']:.2f}",
                f"{one['acceptance_rate']:.0%}",
                f"{one['draft_share']:.0%}",
                f"{eight['draft_share']:.0%}",
                *(f"{speed:.0f} ({speed / base:.2f}×)" for speed, base in speeds),
            )
        )
    columns = ["", "tokens a pass", "accepted", "draft / pass", "at 8", "tokens/s", "at 8"]
    show(f"{kind} prompts, greedy", columns, rows)


if __name__ == "__main__":
    typer.run(main)
