"""The shipped heads: greedy text is the target's own, drafts are kept as often as documented."""

import json
from functools import cache
from pathlib import Path

import pytest

from tandem import Engine, EngineConfig, SamplingParams
from tests.engine.references import hf_greedy

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "model_repository" / "tandem" / "1"
PROMPTS = json.loads((ROOT / "tools" / "demo_models" / "heldout_prompts.json").read_text())[:12]
LENGTH = 48
CHAIN, TREE = {"num_speculative_tokens": 4}, {"num_speculative_tokens": 12, "speculative_tree": 3}
LEAST = {"draft_model": 3.3, "eagle3": 3.1, "mtp": 2.9, "medusa": 1.85, "mlp_speculator": 2.7}
"""Tokens a round of a chain of four, rounded down."""


@cache
def tokens_a_round(method: str, tree: bool) -> float:
    """On some held-out prompts; the text is checked by the way."""
    folder = MODELS / ("draft" if method == "draft_model" else method)
    config = EngineConfig(
        model=MODELS / "target",
        draft_model=folder,
        speculative_method=method,
        dtype="float32",
        adaptive_speculation=False,
        kv_cache_memory="64MiB",
        **(TREE if tree else CHAIN),
    )
    with Engine(config) as engine:
        prompts = [engine.tokenizer.encode(text) for text in PROMPTS]
        params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
        outputs = engine.generate(prompts, params)
    assert [output.token_ids for output in outputs] == greedy(tuple(map(tuple, prompts)))
    rounds = sum(output.stats.rounds for output in outputs)
    return 1 + sum(output.stats.accepted for output in outputs) / rounds


@cache
def greedy(prompts: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    return hf_greedy(MODELS / "target", prompts, LENGTH)


@pytest.mark.parametrize("method", LEAST)
def test_drafts_are_kept_as_documented(method):
    assert tokens_a_round(method, tree=False) > LEAST[method]


@pytest.mark.parametrize("method", LEAST)
def test_a_tree_keeps_more_than_its_chain(method):
    assert tokens_a_round(method, tree=True) > tokens_a_round(method, tree=False)
