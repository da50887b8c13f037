"""What the target writes, by our own engine, and what it thought at every place."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tandem import Engine, EngineConfig, SamplingParams

from .training import HAS_BF16

TOP = 16  # likeliest tokens kept a position: they hold nearly all of the target's probability
ROWS_AT_ONCE = 16  # read


class Rollouts(NamedTuple):
    """Prompts continued by the target, and what it thought at each position.

    tokens [rows, length]; top_ids and top_logits [rows, length, TOP], sorted, position i's being
    those of the token at i + 1.
    """

    tokens: Tensor
    top_ids: Tensor
    top_logits: Tensor


def generate(target: Path, prompts: Tensor, new_tokens: int, temperatures: Tensor) -> Tensor:
    """Continues prompts [rows, length] by new_tokens each; temperatures [rows], 0 being greedy.

    [rows, length + new_tokens] tokens.
    """
    params = [
        SamplingParams(max_tokens=new_tokens, temperature=temperature, seed=row, ignore_eos=True)
        for row, temperature in enumerate(temperatures.tolist())
    ]
    config = EngineConfig(model=target, devices="cpu", kv_cache_memory="1GiB", log_level="warning")
    with Engine(config) as engine:
        outputs = engine.generate(prompts.tolist(), params)
    return torch.cat([prompts, torch.tensor([output.token_ids for output in outputs])], 1)


@torch.no_grad()
def read(model: LlamaForCausalLM, tokens: Tensor) -> Rollouts:
    """Texts [rows, length] with what the target thinks at every place."""
    ids, logits = list[Tensor](), list[Tensor]()
    for part in tokens.split(ROWS_AT_ONCE):
        with torch.autocast("cpu", torch.bfloat16, enabled=HAS_BF16):
            top = model(input_ids=part, use_cache=False).logits.topk(TOP)
        ids.append(top.indices.to(torch.int16))
        logits.append(top.values.bfloat16())
    return Rollouts(tokens, torch.cat(ids), torch.cat(logits))
