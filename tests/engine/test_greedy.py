"""Greedy output with speculation equals `transformers.generate`, token for token (fp32)."""

import random

import pytest

from tandem import Engine, EngineConfig, SamplingParams
from tests.engine.checkpoints import FAMILIES, make_checkpoint
from tests.engine.references import hf_greedy

LENGTH = 64
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH)
POOL = "8MiB"


def make_prompts(count, seed=0):
    """Lengths from 1 to 100; a third share a beginning, a third repeat themselves."""
    rng = random.Random(seed)
    shared = rng.choices(range(96), k=60)
    prompts = []
    for index in range(count):
        length = rng.choice([1, 2, 15, 16, 17, 33, 64, 100])
        if index % 3 == 0:
            prompts.append(
                [*shared[: length // 2], *rng.choices(range(96), k=length - length // 2)]
            )
        elif index % 3 == 1:
            prompts.append((rng.choices(range(96), k=5) * 20)[:length])
        else:
            prompts.append(rng.choices(range(96), k=length))
    return prompts


@pytest.fixture(scope="module")
def prompts():
    return make_prompts(208)


@pytest.fixture(scope="module")
def expected(target, prompts):
    return hf_greedy(target, prompts, LENGTH)


CASES = {
    "plain, batch 16": {"speculative_method": "none", "max_num_seqs": 16},
    "draft k=1, batch 1": {"draft": "good", "num_speculative_tokens": 1, "max_num_seqs": 1},
    "draft k=2, batch 3": {"draft": "good", "num_speculative_tokens": 2, "max_num_seqs": 3},
    "draft k=3, batch 16": {"draft": "good", "num_speculative_tokens": 3, "max_num_seqs": 16},
    "draft k=4, chunks": {
        "draft": "good",
        "num_speculative_tokens": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 24,
    },
    "bad draft k=5": {"draft": "bad", "num_speculative_tokens": 5, "max_num_seqs": 16},
    "draft is target k=6": {"draft": "same", "num_speculative_tokens": 6, "max_num_seqs": 16},
    "draft k=7, no prefix cache": {
        "draft": "good",
        "num_speculative_tokens": 7,
        "max_num_seqs": 16,
        "enable_prefix_caching": False,
    },
    "draft k=8, small blocks": {
        "draft": "good",
        "num_speculative_tokens": 8,
        "max_num_seqs": 16,
        "block_size": 4,
    },
    "ngram k=2, batch 1": {
        "speculative_method": "ngram",
        "num_speculative_tokens": 2,
        "max_num_seqs": 1,
    },
    "ngram k=8, batch 16": {
        "speculative_method": "ngram",
        "num_speculative_tokens": 8,
        "max_num_seqs": 16,
        "prompt_lookup_min": 1,
    },
}


@pytest.mark.parametrize("name", CASES)
def test_equals_transformers(name, target, good_draft, bad_draft, prompts, expected):
    parameters = dict(CASES[name])
    drafts = {"good": good_draft, "bad": bad_draft, "same": target, None: None}
    draft = drafts[parameters.pop("draft", None)]
    outputs, _ = run(target, prompts, draft_model=draft, **parameters)
    assert [output.token_ids for output in outputs] == expected
    if name != "plain, batch 16":
        assert sum(output.stats.drafted for output in outputs) > 0


@pytest.mark.parametrize("method", ["draft_model", "ngram"])
def test_nothing_is_lost_by_preemption(method, target, good_draft, prompts, expected):
    """A pool of 30 blocks for 16 requests of up to 10 blocks each."""
    few = slice(0, 64)
    outputs, preemptions = run(
        target,
        prompts[few],
        draft_model=good_draft if method == "draft_model" else None,
        speculative_method=method,
        num_speculative_tokens=4,
        max_num_seqs=16,
        max_model_len=200,
        pool_blocks=30,
    )
    assert preemptions > 0
    assert [output.token_ids for output in outputs] == expected[few]


def test_requests_with_and_without_speculation_share_a_batch(target, good_draft, prompts, expected):
    count = 32
    params = [
        SamplingParams(temperature=0, max_tokens=LENGTH, num_draft_tokens=index % 4)
        for index in range(count)
    ]
    outputs, _ = run(target, prompts[:count], params, draft_model=good_draft, max_num_seqs=16)
    assert [output.token_ids for output in outputs] == expected[:count]
    assert all((output.stats.drafted > 0) == (i % 4 > 0) for i, output in enumerate(outputs))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family, tmp_path):
    folder = make_checkpoint(tmp_path / "target", family, seed=4)
    draft = make_checkpoint(tmp_path / "draft", family, seed=4, num_hidden_layers=1)
    prompts = make_prompts(12, seed=1)
    outputs, _ = run(folder, prompts, draft_model=draft, num_speculative_tokens=3)
    assert [output.token_ids for output in outputs] == hf_greedy(folder, prompts, LENGTH)


def run(folder, prompts, params=GREEDY, pool_blocks=None, **parameters):
    """Outputs and the number of preemptions, with the pool's integrity checked at the end."""
    memory = pool_blocks * block_bytes(folder, parameters) if pool_blocks else POOL
    parameters |= {"kv_cache_memory": memory, "adaptive_speculation": False}
    config = EngineConfig(model=folder, **parameters)
    with Engine(config) as engine:
        outputs = engine.generate(prompts, params)
        engine.check_integrity()
        return outputs, engine.stats().preemptions


def block_bytes(folder, parameters):
    """Bytes of one block of 16 tokens, fp32: target and, where there is one, draft."""
    layers = 2 if parameters.get("draft_model") is None else 4
    return layers * 2 * 2 * 12 * 16 * 4
