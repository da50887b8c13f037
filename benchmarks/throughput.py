"""Many requests at once: our engine, plain and with speculation, and the peers that batch.

`python -m benchmarks.throughput` prints tokens a second of all requests together for 1, 4, 16 and
64 of them, all of 128 tokens, and writes benchmarks/results/throughput.json.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track

from benchmarks.common import (
    MODELS,
    STORED_BITS,
    Batch,
    interleave,
    machine,
    prompts,
    save,
    show,
    summarized,
)
from benchmarks.contenders import Contender, started
from benchmarks.peers.process import OPENVINO, TANDEM, VLLM
from tandem.tokenizer import Tokenizer

CONTENDERS = (
    Contender(TANDEM),
    Contender(TANDEM, "draft_model", 4),
    Contender(TANDEM, "suffix,draft_model", 8),
    Contender(OPENVINO),
    Contender(OPENVINO, "draft_model", 4),
    Contender(VLLM),
    Contender(VLLM, "draft_model", 4),
)
CONCURRENCIES = (1, 4, 16, 64)
PROMPT_TOKENS = 128
AT_LEAST = 4  # requests a turn, one batch after the other


def main(
    new_tokens: Annotated[int, typer.Option(help="Tokens generated a prompt.")] = 64,
    repeats: Annotated[int, typer.Option(help="Rounds; the median counts.")] = 3,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
) -> None:
    """Measures and reports."""
    torch.set_num_threads(threads)
    folder = MODELS / "target"
    texts = _texts(max(CONCURRENCIES))
    result: dict[str, Any] = {"machine": machine(), "new_tokens": new_tokens, "tokens/s": {}}
    result["draft_weight_bits"] = STORED_BITS
    with ExitStack() as stack:
        peers = {
            one.title: stack.enter_context(started(one, folder, threads, max(CONCURRENCIES)))
            for one in track(CONTENDERS, description="starting", console=Console(stderr=True))
        }
        contenders = {
            title: partial(peer.run, new_tokens=new_tokens) for title, peer in peers.items()
        }
        for count in CONCURRENCIES:
            inputs = [texts[at : at + count] for at in range(0, max(count, AT_LEAST), count)]
            found = summarized(interleave(contenders, inputs, repeats))
            result["tokens/s"][str(count)] = {
                title: round(one.tokens_per_second, 1) for title, one in found.items()
            }
    _show(result["tokens/s"])
    save("throughput", result)


def _texts(count: int) -> Batch:
    """Different ones of the same length."""
    tokenizer = Tokenizer(MODELS / "target")
    found = [tokenizer.encode(text)[:PROMPT_TOKENS] for text in prompts("heldout", count)]
    return [found[place % len(found)] for place in range(count)]


def _show(result: dict[str, dict[str, float]]) -> None:
    rows = [
        (one.title, *(f"{result[str(count)][one.title]:.0f}" for count in CONCURRENCIES))
        for one in CONTENDERS
    ]
    show("tokens/s of all requests", ["", *map(str, CONCURRENCIES)], rows)


if __name__ == "__main__":
    typer.run(main)
