"""BENCHMARKS.md and its plots from what was measured.

`python -m benchmarks.report` reads benchmarks/results/*.json; what was not measured is said to be.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import mixtures, plots
from benchmarks.adaptive import RATIO, rows_of, titles_of
from benchmarks.common import RESULTS, ROOT
from benchmarks.compare import of_plain
from benchmarks.markdown import machine_line, table
from benchmarks.steps import ROWS

OUT = ROOT / "BENCHMARKS.md"
MISSING = "Not measured yet."
INTRODUCTION = """# Benchmarks

Made by `make bench` (hours on two cores). Absolute figures depend on the machine and on
what else it does: compare the ratios, which come from runs in which all contenders took turns.
Greedy decoding; what a contender writes is compared with what ours writes without speculation."""
COMPARE = """## Against other engines, one request at a time

Prompts of 128 tokens, behind which everybody generates the same number of tokens. Each contender is
a process of its own, and all take turns, each when the one before it has come to rest. Speeds count
the prompt's time too, and *of plain* is by our plain decoding; *decoding* is the same without the
first token's time, which every contender shows by a run of one token. *200 MB* and
*600 MB* are the demo target (51 MB) with identity layers, whose `o_proj` and `down_proj` are zero:
the same function at the cost of a bigger model, so that drafts are accepted as they are for the
demo target. Tandem adapts its speculation, as it does by default, and k is the most that it may
draft; the others draft k tokens a round.
Tandem holds weights in bf16 and sums in fp32 (inputs of linear layers have 8 bits by AVX512_BF16
and AMX, 24 elsewhere), OpenVINO holds fp16 weights and computes as it chooses (its KV cache is 8
bits wide by default), vLLM and transformers run in bf16 where the CPU has its arithmetic and in
fp32 elsewhere."""
THROUGHPUT = """## Many requests at once

Tokens a second of all requests together, the demo target, prompts of 128 tokens."""
STEPS = """## Passes and the memory's limit

Milliseconds of a target pass behind 256 tokens by the rows that it verifies; a pass over one row
reads every weight once, and its bytes a second are compared with those of a loop of vector loads
over 1 GiB in the same turns, which asks for memory ahead and computes nothing. (Weights that fit
the cache can be read faster than that.) What a row more costs depends on the machine, and on its
state: on 200 MB 16 rows took 1.1 to 1.4 times one row's time with the matrix unit (AMX) of
virtual Intel Xeons with two cores, and 1.2 to 1.3 times on a virtual AMD Zen 5 while its
two cores are near each other; while they are in different parts of the processor, which read 1.5
times as much together, 1.8 to 2.0 times. A virtual AMD Zen 4 took 1.5 to 1.8 times while its memory
was slow, and 3.2 to 3.5 times while it was fast (docs/performance_log.md)."""
HOST = """Of steps that only decode, the share that is not spent in a model's pass: scheduling,
drafting without a model, sampling, text."""
ADAPTIVE_TEXT = """## Speculation under load

Plain decoding, fixed draft lengths, and adaptive speculation (the default) with 1 to 64 requests at
once: one that ends is followed by another (128 tokens each, behind prompts of 128). *Easy* prompts
repeat themselves, *mixed* ones are half that and half held-out code, *hopeless* is held-out code
with a draft of random weights. Drafts that adapt may be as long as the longest fixed ones. All take
short turns, with the same weights in memory.
Which other is the best is decided by half of the turns, and compared by the rest, for the best of
several noisy figures looks better than it is; in brackets, where nine of ten such ratios lie when
turns are drawn anew."""
MIXTURES = """## Mixtures under load

Several methods together, which adapt, beside plain decoding and their parts, which always draft, as
above: tokens a second with 1, 8 and 32 requests at once. Each mixture is compared with the best of
plain decoding and its own parts. Past answers are not looked up, as the prompts come again."""
METHODS = """## Methods

Every method on the demo target, always drafting as far as it may (`adaptive_speculation` off).
Tokens a second at batch 1 and 8, as a multiple of plain decoding in the same run."""
SERVING = """## Through Triton

Each engine by itself and through a real tritonserver with gRPC streams, tokens a second: ours in
the caller's process, and vLLM's `LLM` beside our model around vLLM. `vllm_backend`'s own model was
not measured beside them: the Python stub of this server takes NumPy 1, vLLM needs NumPy 2."""
GPU = "## GPU"
NO_GPU = "Not measured: no GPU was at hand."
GPU_TEXT = "{device}, torch {torch}, triton {triton}: measured in one run of tools/gpu_bench.py."


def main() -> None:
    """Writes the report."""
    parts = [INTRODUCTION]
    for name, write in SECTIONS.items():
        path = RESULTS / f"{name}.json"
        parts += write(json.loads(path.read_text()) if path.exists() else None)
    OUT.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"written: {OUT.name}")


def _compare(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return [COMPARE, MISSING]
    versions = {k: v for target in found["targets"].values() for k, v in target["versions"].items()}
    listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    parts = [
        COMPARE,
        f"{listed}.",
        _image(plots.compare(found), "Tokens/s"),
    ]
    for name, target in found["targets"].items():
        rows = []
        for title, held in target["heldout"].items():
            again = target["repetitive"][title]
            rows.append(
                (
                    title,
                    f"{held['tokens_per_second']:.0f}",
                    *of_plain(target["heldout"], title),
                    f"{again['tokens_per_second']:.0f}",
                    *of_plain(target["repetitive"], title),
                    f"{held['first_token_ms']:.1f}",
                    held["same_texts"],
                )
            )
        size = target["weights_bytes"] / 1e6
        speeds_of = ["tokens/s", "of plain", "decoding"]
        columns = [
            "",
            *(f"{kind}: {one}" for kind in ("held-out", "repetitive") for one in speeds_of),
        ]
        columns += ["first token, ms", "same text"]
        rounds = len(next(iter(target["heldout"].values()))["by_repeat"])
        measured = f"{machine_line(target['machine'])} Medians of {rounds} rounds."
        parts += [f"### {name} ({size:.0f} MB of weights)", measured]
        parts.append(table(columns, rows))
    return parts


def _throughput(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return [THROUGHPUT, MISSING]
    speeds_of = found["tokens/s"]
    titles = next(iter(speeds_of.values()))
    rows = [(title, *(f"{of[title]:.0f}" for of in speeds_of.values())) for title in titles]
    return [THROUGHPUT, _how(found), table(["requests", *speeds_of], rows)]


def _steps(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return [STEPS, MISSING]
    rows = [
        (
            name,
            *(f"{of['milliseconds'][str(count)]:.2f}" for count in ROWS),
            f"{of['milliseconds']['16'] / of['milliseconds']['1']:.2f}×",
            f"{of['gb_per_s']:.1f}",
            f"{of['of_read_bandwidth']:.0%}",
        )
        for name, of in found["passes"].items()
    ]
    columns = ["rows", *map(str, ROWS), "16 by 1", "GB/s", "of the read bandwidth"]
    host = [
        (name, f"{of['step_ms']:.2f}", f"{of['host_share']:.1%}")
        for name, of in found["host"].items()
    ]
    return [
        STEPS,
        _how(found),
        table(columns, rows),
        HOST,
        table(["", "ms a step", "not in a pass"], host),
    ]


def _adaptive(found: dict[str, Any] | None) -> list[str]:
    return [ADAPTIVE_TEXT, "### Demo target, speculation under load", *_sweep(found, "adaptive")]


def _adaptive_200(found: dict[str, Any] | None) -> list[str]:
    return ["### 200 MB, speculation under load", *_sweep(found, "adaptive-200")]


def _sweep(found: dict[str, Any] | None, name: str) -> list[str]:
    if found is None:
        return [MISSING]
    tables = [
        table([f"{case}, requests", *titles_of(found[case]), RATIO], rows_of(found[case]))
        for case in ("easy", "mixed", "hopeless")
    ]
    return [_measured(found), _image(plots.adaptive(found, name), "The sweep"), *tables]


def _how(found: dict[str, Any]) -> str:
    """Where it was measured, and with which drafts: at first all had their weights as stored."""
    bits = found.get("draft_weight_bits", 16)
    return f"{machine_line(found['machine'])} `draft_weight_bits` was {bits}."


def _measured(found: dict[str, Any]) -> str:
    return f"{_how(found)} At least {found['seconds']:.0f} s of each figure."


def _mixtures(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return [MIXTURES, MISSING]
    shown = table(["", *mixtures.columns(found)], mixtures.rows_of(found))
    return [MIXTURES, _measured(found), shown]


def _methods(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return [METHODS, MISSING]
    rows = []
    for title in found["heldout"]:
        row = [title]
        for kind in ("heldout", "repetitive"):
            of, plain = found[kind][title], found[kind]["none"]
            row.append(f"{of['mean_acceptance_length']:.2f}")
            for batch in ("batch 1", "batch 8"):
                ratio = of[batch]["tokens_per_second"] / plain[batch]["tokens_per_second"]
                row.append(f"{ratio:.2f}×")
        rows.append(row)
    columns = ["", "held-out: tokens a pass", "batch 1", "batch 8"]
    columns += ["repetitive: tokens a pass", "batch 1", "batch 8"]
    return [METHODS, _how(found), table(columns, rows)]


def _serving(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return [SERVING, MISSING]
    rows = [
        (name, f"{of['in_process']:.0f}", f"{of['triton']:.0f}", f"{of['ratio']:.0%}")
        for name, of in found.items()
        if "batch" in name
    ]
    return [
        SERVING,
        _how(found),
        table(["", "by itself", "Triton", "ratio"], rows),
    ]


def _gpu(found: dict[str, Any] | None) -> list[str]:
    if found is None or found["device"] == "CPU":
        return [GPU, NO_GPU]
    rows = [(name, f"{value:g}") for name, value in _figures(found)]
    return [GPU, GPU_TEXT.format(**found), table(["", "measured"], rows)]


def _figures(of: dict[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """All numbers, whatever they stand in."""
    for key, value in of.items():
        name = f"{path}: {key}" if path else key
        if key in ("shape", "seconds"):  # what was measured, and how long that took
            continue
        if isinstance(value, dict):
            yield from _figures(value, name)
        elif isinstance(value, int | float):
            yield name, value


SECTIONS = {
    "compare": _compare,
    "throughput": _throughput,
    "steps": _steps,
    "adaptive": _adaptive,
    "adaptive-200": _adaptive_200,
    "mixtures": _mixtures,
    "methods": _methods,
    "serving": _serving,
    "gpu": _gpu,
}


def _image(path: Path, text: str) -> str:
    return f"![{text}]({path.relative_to(ROOT)})"


if __name__ == "__main__":
    main()
