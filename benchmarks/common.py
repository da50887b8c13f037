"""What the measurements share: prompts, medians, memory bandwidth, tables, results as JSON."""

from __future__ import annotations

import hashlib
import json
import platform
import random
import re
import shutil
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.bandwidth import BYTES, Reader
from tandem import EngineConfig

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "model_repository" / "tandem" / "1"
PROMPTS = ROOT / "tools" / "demo_models"
RESULTS = ROOT / "benchmarks" / "results"
CACHE = ROOT / ".cache" / "benchmarks"


class Run(NamedTuple):
    """One timed generation."""

    tokens: int
    seconds: float
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    first_seconds: float = 0.0
    """That the prompts and one token took by themselves, where that was timed too."""


class Summary(NamedTuple):
    """A contender's runs over all prompts and repeats."""

    tokens_per_second: float
    """All prompts together, of each the median over repeats."""
    acceptance_rate: float
    tokens_per_round: float
    by_repeat: list[float]
    """Tokens a second of each repeat."""
    first_seconds: float
    """That the prompt and one token took by themselves, the mean over prompts."""


Batch = list[list[int]]
"""Prompts that are generated for at once."""
Contender = Callable[[Batch], Run]


def digest(folder: Path) -> str:
    """Of a checkpoint's weights: what is made of it is made anew when they change."""
    with (folder / "model.safetensors").open("rb") as weights:
        return hashlib.file_digest(weights, "sha256").hexdigest()[:8]


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """The folder, made under another name first, so that an interrupted try leaves none."""
    if not folder.exists():
        scratch = folder.with_name(folder.name + ".tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.parent.mkdir(parents=True, exist_ok=True)
        make(scratch)
        scratch.rename(folder)
    return folder


def prompts(kind: str, count: int) -> list[str]:
    """Prompts that ship with the demo models: `heldout` or `repetitive`."""
    texts: list[str] = json.loads((PROMPTS / f"{kind}_prompts.json").read_text(encoding="utf-8"))
    return texts[:count]


Runs = dict[str, list[list[Run]]]
"""Of each contender, of each repeat, of each input."""


def interleave(contenders: Mapping[str, Contender], inputs: Sequence[Batch], repeats: int) -> Runs:
    """Runs every contender on every input, turn by turn, after one unmeasured round."""
    runs: Runs = {name: [] for name in contenders}
    names, order = list(contenders), random.Random(0)
    for contender in contenders.values():
        contender(inputs[0])
    for repeat in track(range(repeats), description="measuring", console=Console(stderr=True)):
        for name in contenders:
            runs[name].append([])
        for batch in inputs:
            order.shuffle(names)  # nobody always follows the same one
            for name in names:
                runs[name][repeat].append(contenders[name](batch))
    return runs


def summarized(runs: Runs) -> dict[str, Summary]:
    """Of every contender."""
    return {name: _summary(repeats) for name, repeats in runs.items()}


def _summary(repeats: list[list[Run]]) -> Summary:
    of_inputs = zip(*repeats, strict=True)
    tokens, seconds, first = 0.0, 0.0, 0.0
    for runs in of_inputs:  # what disturbs the machine lasts for some runs, not for most of them
        tokens += statistics.median(run.tokens for run in runs)
        seconds += statistics.median(run.seconds for run in runs)
        first += statistics.median(run.first_seconds for run in runs)
    every = [run for runs in repeats for run in runs]
    drafted, rounds = sum(r.drafted for r in every), sum(r.rounds for r in every)
    accepted = sum(r.accepted for r in every)
    return Summary(
        tokens / seconds,
        accepted / drafted if drafted else 0.0,
        1 + accepted / rounds if rounds else 1.0,
        [sum(r.tokens for r in runs) / sum(r.seconds for r in runs) for runs in repeats],
        first / len(repeats[0]),
    )


def read_bandwidth(repeats: int = 5) -> float:
    """Bytes a second that all threads together read from memory."""
    reader = Reader(torch.get_num_threads())
    return BYTES / statistics.median(reader.seconds() for _ in range(repeats))


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    about = Path("/proc/cpuinfo").read_text()
    names = re.findall(r"^model name\s*: (.*)$", about, re.MULTILINE)
    matrix_unit = " and AMX" if " amx_tile" in about else ""
    found = {
        "cpu": names[0] if names else platform.processor(),
        "instructions": torch.backends.cpu.get_cpu_capability() + matrix_unit,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if shutil.which("g++"):  # it takes a compiled loop
        found["read_gb_per_s"] = round(read_bandwidth() / 1e9, 1)
    return found


def show(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Prints a table."""
    table = Table(title=title)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=110).print(table)


def load(name: str) -> dict[str, Any]:
    """What `save` wrote."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


STORED_BITS = 16
"""Of drafts' weights, beside peers, who draft with what is stored."""


def save(name: str, result: dict[str, Any]) -> None:
    """Writes benchmarks/results/NAME.json, and with which drafts it was measured: what a benchmark
    does not say itself is the engine's default."""
    result.setdefault("draft_weight_bits", EngineConfig.model_fields["draft_weight_bits"].default)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path.relative_to(ROOT)}")
