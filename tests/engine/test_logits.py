"""The decoder's logits equal those of transformers, for every family and variant."""

import random

import pytest
import torch

from tandem.attention.plan import Query
from tandem.models.config import read_model_config
from tandem.runners.model_runner import ModelRunner
from tests.engine.checkpoints import make_checkpoint
from tests.engine.references import hf_logits, logits_of

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, one KV head": ("llama", {"num_key_value_heads": 1}),
    "llama, sharded": ("llama", {"max_shard_size": "60KB"}),
    "llama, own head_dim": ("llama", {"head_dim": 32}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "qwen3, all KV heads": ("qwen3", {"num_key_value_heads": 4}),
}
BLOCK = 16
pytestmark = pytest.mark.usefixtures("arithmetic")


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_equal_transformers(name, tmp_path):
    family, overrides = VARIANTS[name]
    folder = make_checkpoint(tmp_path, family, seed=3, **overrides)
    tokens = random.Random(1).choices(range(96), k=150)
    logits = run_in_chunks(folder, tokens, chunks=[70, 1, 7, 72])
    torch.testing.assert_close(logits, hf_logits(folder, tokens), atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.15), (torch.float16, 0.02)])
def test_half_precision_is_near(dtype, tolerance, tmp_path):
    folder = make_checkpoint(tmp_path, "llama", seed=3)
    tokens = random.Random(1).choices(range(96), k=50)
    logits = run_in_chunks(folder, tokens, chunks=[50], dtype=dtype)
    torch.testing.assert_close(logits, hf_logits(folder, tokens), atol=tolerance, rtol=0.05)


def run_in_chunks(folder, tokens, chunks, dtype=torch.float32):
    """All logits, computed through the paged cache, with blocks out of order."""
    runner = ModelRunner(folder, read_model_config(folder), dtype, torch.device("cpu"))
    runner.allocate(num_blocks=12, block_size=BLOCK)
    blocks = [7, 8, 2, 9, 1, 0, 11, 10, 4, 5]
    parts, start = [], 0
    for length in chunks:
        query = Query(blocks[: -(-(start + length) // BLOCK)], start, length)
        parts.append(logits_of(runner, tokens[start : start + length], [query]))
        start += length
    return torch.cat(parts)


def test_a_batch_equals_its_parts(tmp_path):
    """Ragged queries, padded into one group, see exactly what each sees alone."""
    folder = make_checkpoint(tmp_path, "qwen2", seed=5)
    runner = ModelRunner(folder, read_model_config(folder), torch.float32, torch.device("cpu"))
    runner.allocate(num_blocks=12, block_size=BLOCK)
    rng = random.Random(2)
    texts = [rng.choices(range(96), k=length) for length in (20, 33, 5)]
    tables = [[3, 4], [9, 1, 7], [0]]
    for text, blocks in zip(texts, tables, strict=True):
        logits_of(runner, text[:-2], [Query(blocks, 0, len(text) - 2)])
    news = [2, 1, 2]
    queries = [
        Query(blocks, len(text) - 2, new)
        for text, blocks, new in zip(texts, tables, news, strict=True)
    ]
    flat = [token for t, new in zip(texts, news, strict=True) for token in t[-2:][:new]]
    logits = logits_of(runner, flat, queries)
    expected = torch.cat(
        [hf_logits(folder, t)[-2:][:new] for t, new in zip(texts, news, strict=True)]
    )
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("rows", [[0, 5], [5, 2], [0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [3]])
@pytest.mark.parametrize("by_kernels", [True, False])
def test_logits_of_some_rows_are_theirs(tmp_path, rows, by_kernels):
    folder = make_checkpoint(tmp_path, "llama", seed=5)
    runner = ModelRunner(folder, read_model_config(folder), torch.float32, torch.device("cpu"))
    runner.allocate(num_blocks=2, block_size=BLOCK)
    if not by_kernels:
        runner.by_kernels = None
    query = Query([0, 1], 0, 6)
    every = runner.forward(list(range(6)), [query]).logits.clone()
    torch.testing.assert_close(runner.forward(list(range(6)), [query], rows).logits, every[rows])
