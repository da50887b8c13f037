"""Measures the GPU path in one run: `python -m tools.gpu_bench`, at most nine minutes on one GPU.

The target has the shape of an 8B Llama in bfloat16, with random weights; its draft computes the
same function (gpu_models.py), so that nearly all it proposes is accepted. What is measured so far
is written as JSON after each figure; of a part that fails, why. `--shape tiny --device cpu` tries
the script where there is no GPU.
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
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
from tools.gpu_models import SHAPES, make_pair, read_in_a_pass

OUT = Path(__file__).parents[1] / "benchmarks" / "results" / "gpu.json"
CONTEXT, LONG_CONTEXT = 512, 8192  # tokens
TREE = [-1, 0, 0, 0, 1, 1, 2, 4]
DRAFTED = (4, 8)
PROMPT = [7 + 11 * place % 4000 for place in range(128)]
BLOCK = 16
BEGUN_WITHIN_S = 400.0
"""Of all parts: the longest takes some 100 s, and nine minutes are what there is."""


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

    def kernel_seconds(self, run: Callable[[], object]) -> float:
        """The median time of what a call launches, its way through Python not included."""
        if self.device.type != "cuda":
            return self.seconds(run)
        self.wait()  # for what was copied: it is launched on a stream that does not
        return 1e-3 * float(triton.testing.do_bench_cudagraph(run, return_mode="median"))

    def tidy(self) -> None:
        """Memory of what is gone is free for what comes."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def engine(self, method: str = "none", tokens: int = 4) -> Engine:
        """On the target."""
        return Engine(
            EngineConfig(
                model=self.target,
                draft_model=self.draft if method == "draft_model" else None,
                draft_weight_bits=16,  # or it would not be the target itself
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


def kernels(bench: Bench) -> Iterator[tuple[str, Any]]:
    """Attention of a layer by the kernels against torch's, over all layers' caches in turn, which
    a GPU's own cache does not hold."""
    config = read_model_config(bench.target)
    blocks, many = CONTEXT // BLOCK + 1, LONG_CONTEXT // BLOCK + 1
    cases = {
        "1 token": [Query(range(blocks), CONTEXT, 1)],
        "a tree of 8": [Query(range(blocks), CONTEXT, 8, TREE)],
        "a tree of 8 behind a long text": [Query(range(many), LONG_CONTEXT, 8, TREE)],
        "16 requests, 4 tokens each": [
            Query(range(n * blocks, (n + 1) * blocks), CONTEXT, 4) for n in range(16)
        ],
    }
    cache = PagedKVCache(config, max(many, 16 * blocks), BLOCK, torch.bfloat16, bench.device)
    cache.data.normal_()
    for name, queries in cases.items():
        rows = sum(query.length for query in queries)
        query = torch.randn(rows, config.num_heads, config.head_dim, device=bench.device)
        made: dict[str, Tensor] = {}
        milliseconds: dict[str, float] = {}
        for way, by_triton in (("kernels", bench.device.type == "cuda"), ("torch", False)):
            cache.by_triton = by_triton
            attend = partial(cache.plan(queries).attend, query.bfloat16())
            made[way] = attend(cache.data[0]).float()
            seconds = bench.kernel_seconds(partial(_each, attend, cache.data))
            milliseconds[way] = round(1e3 * seconds / config.num_layers, 4)
        difference = (made["kernels"] - made["torch"]).abs().max().item()
        yield name, {"milliseconds": milliseconds, "greatest_difference": difference}


def _each(attend: Callable[[Tensor], Tensor], caches: Tensor) -> None:
    for cache in caches:
        attend(cache)


def passes(bench: Bench) -> Iterator[tuple[str, Any]]:
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
    speed = read_in_a_pass(bench.target) / times["1 row"]
    yield "milliseconds", {name: round(1e3 * one, 3) for name, one in times.items()}
    yield "8_rows_by_1", round(times["8 rows"] / times["1 row"], 3)
    yield "tree_of_8_by_1", round(times["a tree of 8"] / times["1 row"], 3)
    yield "gb_per_s", round(speed / 1e9, 1)
    yield "read_gb_per_s", round(limit / 1e9, 1)
    yield "of_read_bandwidth", round(speed / limit, 3)


def ours(bench: Bench) -> Iterator[tuple[str, Any]]:
    """Tokens a second of one request, plain and with the draft, where a round is one launch or
    is not."""
    for tokens in (0, *DRAFTED):
        yield from _of_an_engine(bench, tokens)
        bench.tidy()


def _of_an_engine(bench: Bench, tokens: int) -> Iterator[tuple[str, Any]]:
    """tokens: drafted in a round; 0: plain."""
    if not tokens:
        with bench.engine() as engine:
            yield "plain", _by_engine(bench, engine)
        return
    name = f"draft model, k = {tokens}"
    with bench.engine("draft_model", tokens) as engine:
        yield name, _by_engine(bench, engine)
        if isinstance(engine.proposer, ChainProposer):
            engine.proposer.rounds = None
        yield f"{name}, pass by pass", _by_engine(bench, engine)


def _by_engine(bench: Bench, engine: Engine) -> dict[str, Any]:
    params = SamplingParams(temperature=0, max_tokens=bench.new_tokens, ignore_eos=True)
    time_taken = bench.seconds(lambda: engine.generate(PROMPT, params), repeats=3)
    (output,) = engine.generate(PROMPT, params)
    return {
        "tokens_per_second": round(bench.new_tokens / time_taken, 1),
        "acceptance_rate": round(output.stats.acceptance_rate, 3),
        "first_tokens": output.token_ids[:16],
    }


def huggingface(bench: Bench) -> Iterator[tuple[str, Any]]:
    """The same by transformers, plain and assisted."""
    model, assistant = (_pretrained(folder, bench.device) for folder in (bench.target, bench.draft))
    yield "plain", _by_transformers(bench, model, {})
    for tokens in DRAFTED:
        assistant.generation_config.num_assistant_tokens = tokens
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        assistant.generation_config.assistant_confidence_threshold = 0.0
        settings = {"assistant_model": assistant}
        yield f"assisted, k = {tokens}", _by_transformers(bench, model, settings)


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
Part = Callable[[Bench], Iterator[tuple[str, Any]]]


def measure(part: Part, bench: Bench, into: dict[str, Any], write: Callable[[], object]) -> None:
    """A part's figures as they come; of one that fails, the sentence, and the others go on."""
    start = time.perf_counter()
    try:
        for name, value in part(bench):
            into[name] = value
            write()
    except Exception as error:
        traceback.print_exc()
        into["error"] = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
    into["seconds"] = round(time.perf_counter() - start, 1)
    write()
    bench.tidy()


def main(
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = OUT,
    shape: Annotated[str, typer.Option(help=f"One of {', '.join(SHAPES)}.")] = "8b",
    device: Annotated[str, typer.Option(help="What computes.")] = "cuda:0",
    new_tokens: Annotated[int, typer.Option(help="Tokens generated a prompt.")] = 128,
) -> None:
    """Measures and writes."""
    where, begin_by = torch.device(device), time.monotonic() + BEGUN_WITHIN_S
    if where.type == "cuda" and not torch.cuda.is_available():
        print("There is no GPU here: nothing was measured.")
        raise typer.Exit(1)
    if where.index is not None:
        torch.cuda.set_device(where)  # what is waited for, and timed
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else "CPU"
    result: dict[str, Any] = {"device": name, "shape": SHAPES[shape]._asdict()}
    result |= {"torch": torch.__version__, "triton": triton.__version__}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(where, Path(folder, "target"), Path(folder, "draft"), new_tokens)
        make_pair(SHAPES[shape], bench.target, bench.draft, where)
        for part in track(PARTS, description="measuring"):
            into = result[part.__name__] = {}
            if time.monotonic() > begin_by:
                into["error"] = f"no time was left for it: {BEGUN_WITHIN_S:.0f} s had passed"
                continue
            measure(part, bench, into, lambda: out.write_text(_json(result), encoding="utf-8"))
    out.write_text(_json(result), encoding="utf-8")
    print(_json(result))


def _json(result: dict[str, Any]) -> str:
    return json.dumps(result, indent=1) + "\n"


if __name__ == "__main__":
    typer.run(main)
