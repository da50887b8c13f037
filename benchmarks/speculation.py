"""Plain decoding, draft model, n-gram and transformers on the demo pair: batch 1, greedy.

`python -m benchmarks.speculation` prints two tables (held-out and repetitive prompts) and writes
benchmarks/results/speculation.json.
"""

from __future__ import annotations

import time
from typing import Annotated

import torch
import transformers
import typer

from benchmarks.common import (
    MODELS,
    Batch,
    Contender,
    Run,
    Summary,
    interleave,
    machine,
    prompts,
    save,
    show,
)
from tandem import Engine, EngineConfig, SamplingParams
from tandem.tokenizer import Tokenizer

DRAFT_LENGTHS = (2, 3, 4, 5, 6, 8)
NGRAM_LENGTHS = (4, 8, 12)


def main(
    count: Annotated[int, typer.Option(help="Prompts of each kind.")] = 6,
    new_tokens: Annotated[int, typer.Option(help="Tokens generated a prompt.")] = 128,
    repeats: Annotated[int, typer.Option(help="Rounds; the median counts.")] = 3,
    threads: Annotated[int, typer.Option(help="CPU threads of every contender.")] = 2,
) -> None:
    """Measures and reports."""
    torch.set_num_threads(threads)
    common = {
        "model": MODELS / "target",
        "enable_prefix_caching": False,
        "devices": "cpu",
        "adaptive_speculation": False,
    }
    drafting = EngineConfig(
        draft_model=MODELS / "draft", num_speculative_tokens=max(DRAFT_LENGTHS), **common
    )
    lookup = EngineConfig(
        speculative_method="ngram", num_speculative_tokens=max(NGRAM_LENGTHS), **common
    )
    tokenizer = Tokenizer(MODELS / "target")
    result: dict[str, object] = {"machine": machine(), "new_tokens": new_tokens}
    with Engine(drafting) as draft_engine, Engine(lookup) as ngram_engine:
        contenders = {
            "transformers": _transformers(new_tokens),
            "tandem, plain": _ours(draft_engine, 0, new_tokens),
        }
        contenders |= {
            f"tandem, draft model k={k}": _ours(draft_engine, k, new_tokens) for k in DRAFT_LENGTHS
        }
        contenders |= {
            f"tandem, n-gram k={k}": _ours(ngram_engine, k, new_tokens) for k in NGRAM_LENGTHS
        }
        for kind in ("heldout", "repetitive"):
            inputs = [[tokenizer.encode(text)] for text in prompts(kind, count)]
            found = interleave(contenders, inputs, repeats)
            _report(kind, found, result)
    save("speculation", result)


def _ours(engine: Engine, k: int, new_tokens: int) -> Contender:
    params = SamplingParams(
        temperature=0, max_tokens=new_tokens, ignore_eos=True, num_draft_tokens=k
    )

    def run(batch: Batch) -> Run:
        start = time.perf_counter()
        (output,) = engine.generate(batch, params)
        seconds = time.perf_counter() - start
        stats = output.stats
        return Run(len(output.token_ids), seconds, stats.drafted, stats.accepted, stats.rounds)

    return run


def _transformers(new_tokens: int) -> Contender:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        MODELS / "target", dtype=torch.bfloat16
    ).eval()

    @torch.inference_mode()
    def run(batch: Batch) -> Run:
        tokens = torch.tensor(batch)
        start = time.perf_counter()
        out = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            do_sample=False,
        )
        return Run(out.shape[1] - tokens.shape[1], time.perf_counter() - start)

    return run


def _report(kind: str, found: dict[str, Summary], result: dict[str, object]) -> None:
    plain = found["tandem, plain"].tokens_per_second
    rows = [
        (
            name,
            f"{s.tokens_per_second:.0f}",
            f"{s.tokens_per_second / plain:.2f}",
            f"{s.acceptance_rate:.0%}",
            f"{s.tokens_per_round:.2f}",
        )
        for name, s in found.items()
    ]
    show(
        f"{kind} prompts, batch 1, greedy",
        ["", "tokens/s", "of plain", "accepted", "tokens a round"],
        rows,
    )
    weights = (MODELS / "target" / "model.safetensors").stat().st_size
    print(f"plain decoding reads {weights * plain / 1e9:.1f} GB/s of weights")
    result[kind] = {name: summary._asdict() for name, summary in found.items()}


if __name__ == "__main__":
    typer.run(main)
