"""With a seed, the text is a function of prompt, parameters and seed alone (fp32)."""

import random

import pytest

from tandem import Engine, EngineConfig, SamplingParams

COUNT, LENGTH = 24, 48
RNG = random.Random(7)
ALWAYS = {"kv_cache_memory": "8MiB", "adaptive_speculation": False}
PROMPTS = [RNG.choices(range(96), k=RNG.randrange(2, 50)) for _ in range(COUNT)]
SHAPES = [{}, {"top_k": 20}, {"top_p": 0.8, "temperature": 0.9}, {"frequency_penalty": 0.6}]
PARAMS = [
    SamplingParams(seed=100 + index, max_tokens=LENGTH, **SHAPES[index % len(SHAPES)])
    for index in range(COUNT)
]


def run(target, prompts=PROMPTS, params=PARAMS, **parameters):
    with Engine(EngineConfig(model=target, **ALWAYS, **parameters)) as engine:
        return [output.token_ids for output in engine.generate(prompts, params)]


@pytest.fixture(scope="module")
def plain(target):
    return run(target, speculative_method="none", max_num_seqs=1)


@pytest.mark.parametrize("k", range(1, 9))
def test_same_text_for_every_k(k, target, good_draft, plain):
    assert run(target, draft_model=good_draft, num_speculative_tokens=k) == plain


@pytest.mark.parametrize("batch", [1, 5, 24])
def test_same_text_for_any_draft_and_batch(batch, target, bad_draft, plain):
    assert run(target, draft_model=bad_draft, max_num_seqs=batch) == plain


def test_same_text_with_ngram_and_chunks(target, plain):
    parameters = {"speculative_method": "ngram", "prompt_lookup_min": 1}
    assert run(target, max_num_batched_tokens=24, max_num_seqs=20, **parameters) == plain


def test_same_text_among_strangers(target, good_draft, plain):
    """Unseeded neighbours come and go; the seeded requests do not notice."""
    strangers = [SamplingParams(max_tokens=20)] * COUNT
    prompts = [prompt for pair in zip(PROMPTS, reversed(PROMPTS), strict=True) for prompt in pair]
    params = [param for pair in zip(PARAMS, strangers, strict=True) for param in pair]
    assert run(target, prompts, params, draft_model=good_draft)[::2] == plain


def test_another_seed_gives_another_text(target, plain):
    other = [p.model_copy(update={"seed": p.seed + 1000}) for p in PARAMS]
    assert run(target, params=other) != plain


def test_the_draft_shares_the_noise(target, plain):
    """A draft equal to the target must then be accepted whole."""
    with Engine(EngineConfig(model=target, draft_model=target, **ALWAYS)) as engine:
        outputs = engine.generate(PROMPTS, PARAMS)
    assert all(output.stats.acceptance_rate == 1 for output in outputs)
