"""Measures the GPU path in one run: `python -m tools.gpu_bench`, at most nine minutes on one GPU.

The target has the shape of an 8B Llama in bfloat16, with random weights; its draft computes the
same function (gpu_models.py), so that all it proposes is accepted. After each part what is measured
so far is written as JSON. `--shape tiny --device cpu` tries the script where there is no GPU.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import transformers
import triton
import typer
from rich.progress import track
from torch import Tensor

from tandem import Engine, EngineConfig, SamplingParams
from tandem.attention.paged import PagedKVCache
from tandem.attention.plan import Query
from tandem.drafting.chain import ChainProposer
from tandem.models.config import read_model_config
from tools.gpu_models import SHAPES, make_pair, size_of

OUT = Path(__file__).parents[1] / "benchmarks" / "results" / "gpu.json"
CONTEXT = 512
TREE = [-1, 0, 0, 0, 1, 1, 2, 4]
DRAFTED = (4, 8)
PROMPT = [7 + 11 * place % 4000 for place in range(128)]
BLOCK = 16


class Bench(NamedTuple):
    """What all parts use."""

    device: torch.device
    target: Path
    draft: Path
    new_tokens: int

    def wait(self) -> None:
        """For the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, run: Callable[[], object], repeats: int = 20) -> float:
        """The median time of a call, its work on the device included."""
        times: list[float] = []
        for _ in range(repeats + 3):
            self.wait()
            start = time.perf_counter()
            run()
            self.wait()
            times.append(time.perf_counter() - start)
        return statistics.median(times[3:])

    def engine(self, method: str = "none", tokens: int = 4) -> Engine:
        """On the target."""
        return Engine(
            EngineConfig(
                model=self.target,
                draft_model=self.draft if method == "draft_model" else None,
                speculative_method=method,
                num_speculative_tokens=tokens,
                adaptive_speculation=False,
                devices=str(self.device),
                dtype="bfloat16",
                kv_cache_memory="4GiB" if self.device.type == "cuda" else "64MiB",
                max_model_len=2 * CONTEXT,
            )
        )

    def bandwidth(self) -> float:
        """Bytes a second that a sum over a large array reads."""
        size = 4 << 30 if self.device.type == "cuda" else 256 << 20
        return size / self.seconds(torch.ones(size // 4, device=self.device).sum)


# -- parts ---------------------------------------------------------------------------------------


def kernels(bench: Bench) -> dict[str, Any]:
    """Attention by the kernels against torch's, on the same cache."""
    config = replace(read_model_config(bench.target), num_layers=1)
    blocks = CONTEXT // BLOCK + 1
    cases = {
        "1 token": [Query(range(blocks), CONTEXT, 1)],
        "a tree of 8": [Query(range(blocks), CONTEXT, 8, TREE)],
        "16 requests, 4 tokens each": [
            Query(range(n * blocks, (n + 1) * blocks), CONTEXT, 4) for n in range(16)
        ],
    }
    cache = PagedKVCache(config, 16 * blocks, BLOCK, torch.bfloat16, bench.device)
    cache.data.normal_()
    found = {}
    for name, queries in cases.items():
        rows = sum(query.length for query in queries)
        query = torch.randn(rows, config.num_heads, config.head_dim, device=bench.device)
        made: dict[str, Tensor] = {}
        milliseconds: dict[str, float] = {}
        for way, by_triton in (("kernels", bench.device.type == "cuda"), ("torch", False)):
            cache.by_triton = by_triton
            run = partial(cache.plan(queries).attend, query.bfloat16(), cache.data[0])
            made[way] = run().float()
            milliseconds[way] = round(1e3 * bench.seconds(run), 4)
        difference = (made["kernels"] - made["torch"]).abs().max().item()
        found[name] = {"milliseconds": milliseconds, "greatest_difference": difference}
    return found


def passes(bench: Bench) -> dict[str, Any]:
    """A pass by what it verifies, and the share of the memory's limit that a plain one reaches."""
    blocks = list(range(CONTEXT // BLOCK + 2))
    cases = {
        "1 row": Query(blocks, CONTEXT, 1),
        "8 rows": Query(blocks, CONTEXT, 8),
        "a tree of 8": Query(blocks, CONTEXT, 8, TREE),
        "16 rows": Query(blocks, CONTEXT, 16),
    }
    limit = bench.bandwidth()
    with bench.engine() as engine:
        times = {
            name: bench.seconds(partial(engine.target.forward, [1] * query.length, [query]))
            for name, query in cases.items()
        }
    speed = size_of(bench.target) / times["1 row"]
    return {
        "milliseconds": {name: round(1e3 * one, 3) for name, one in times.items()},
        "8_rows_by_1": round(times["8 rows"] / times["1 row"], 3),
        "tree_of_8_by_1": round(times["a tree of 8"] / times["1 row"], 3),
        "gb_per_s": round(speed / 1e9, 1),
        "read_gb_per_s": round(limit / 1e9, 1),
        "of_read_bandwidth": round(speed / limit, 3),
    }


def ours(bench: Bench) -> dict[str, Any]:
    """Tokens a second of one request, plain and with the draft."""
    found = {"plain": _by_engine(bench, "none", 1)}
    for tokens in DRAFTED:
        found[f"draft model, k = {tokens}"] = _by_engine(bench, "draft_model", tokens)
        by_passes = _by_engine(bench, "draft_model", tokens, by_passes=True)
        found[f"draft model, k = {tokens}, pass by pass"] = by_passes
    return found


def _by_engine(bench: Bench, method: str, tokens: int, by_passes: bool = False) -> dict[str, Any]:
    """by_passes: a round is not one launch."""
    params = SamplingParams(temperature=0, max_tokens=bench.new_tokens, ignore_eos=True)
    with bench.engine(method, tokens) as engine:
        if by_passes and isinstance(engine.proposer, ChainProposer):
            engine.proposer.rounds = None
        time_taken = bench.seconds(lambda: engine.generate(PROMPT, params), repeats=3)
        (output,) = engine.generate(PROMPT, params)
    return {
        "tokens_per_second": round(bench.new_tokens / time_taken, 1),
        "acceptance_rate": round(output.stats.acceptance_rate, 3),
        "first_tokens": output.token_ids[:16],
    }


def huggingface(bench: Bench) -> dict[str, Any]:
    """The same by transformers, plain and assisted."""
    model, assistant = (_pretrained(folder, bench.device) for folder in (bench.target, bench.draft))
    found = {"plain": _by_transformers(bench, model, {})}
    for tokens in DRAFTED:
        assistant.generation_config.num_assistant_tokens = tokens
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        assistant.generation_config.assistant_confidence_threshold = 0.0
        settings = {"assistant_model": assistant}
        found[f"assisted, k = {tokens}"] = _by_transformers(bench, model, settings)
    return found


def _pretrained(folder: Path, device: torch.device) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return model.to(device).eval()


@torch.inference_mode()
def _by_transformers(bench: Bench, model: Any, settings: dict[str, Any]) -> dict[str, Any]:
    prompt = torch.tensor([PROMPT], device=bench.device)
    run = partial(
        model.generate,
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=bench.new_tokens,
        eos_token_id=None,
        do_sample=False,
        **settings,
    )
    time_taken = bench.seconds(run, repeats=2)
    written = run()[0, len(PROMPT) :].tolist()
    return {
        "tokens_per_second": round(len(written) / time_taken, 1),
        "first_tokens": written[:16],
    }


PARTS = (kernels, passes, ours, huggingface)


def main(
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = OUT,
    shape: Annotated[str, typer.Option(help=f"One of {', '.join(SHAPES)}.")] = "8b",
    device: Annotated[str, typer.Option(help="What computes.")] = "cuda:0",
    new_tokens: Annotated[int, typer.Option(help="Tokens generated a prompt.")] = 128,
) -> None:
    """Measures and writes."""
    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        print("There is no GPU here: nothing was measured.")
        raise typer.Exit(1)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else "CPU"
    result: dict[str, Any] = {"device": name, "shape": SHAPES[shape]._asdict()}
    result |= {"torch": torch.__version__, "triton": triton.__version__}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(where, Path(folder, "target"), Path(folder, "draft"), new_tokens)
        make_pair(SHAPES[shape], bench.target, bench.draft, where)
        for part in track(PARTS, description="measuring"):
            start = time.perf_counter()
            result[part.__name__] = part(bench)
            result[part.__name__]["seconds"] = round(time.perf_counter() - start, 1)
            out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    typer.run(main)
