"""Everything at once: small pools, shared prefixes, chunks, drafts, stops and aborts.

Whatever happens around it, a greedy or seeded request must read as it does alone, without drafts.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem import Engine, EngineConfig, RequestOutput, SamplingParams
from tandem.verification.noise import coupled_gumbel, row_key
from tandem.verification.scores import Row, scores
from tests.engine.builders import make_request
from tests.engine.conftest import ENGINE_DEFAULTS
from tests.engine.references import hf_logits

TOKEN_BYTES = 2 * 48 * 4  # KV of a token in the tiny target: layers, width, bytes


@pytest.fixture(scope="module")
def plain(target) -> Engine:
    return Engine(EngineConfig(model=target, enable_prefix_caching=False, **ENGINE_DEFAULTS))


METHODS = ["draft_model", "draft_model", "ngram", "none"]


def any_config(
    chance: random.Random, target: Path, draft: Path, methods: list[str] = METHODS
) -> EngineConfig:
    """An engine whose pool holds between one and three of the longest requests."""
    length, block = chance.choice([48, 64, 96]), chance.choice([1, 2, 4, 16])
    method = chance.choice(methods)
    runners = 2 if method == "draft_model" else 1
    blocks = -(-length // block) * chance.uniform(1, 3)
    return EngineConfig(
        **ENGINE_DEFAULTS
        | {
            "model": target,
            "draft_model": draft,
            "speculative_method": method,
            "num_speculative_tokens": chance.choice([1, 3, 8]),
            "block_size": block,
            "max_model_len": length,
            "max_num_batched_tokens": chance.choice([16, 24, 64]),
            "max_num_seqs": chance.choice([2, 4, 8]),
            "enable_prefix_caching": chance.random() < 0.8,
            "kv_cache_memory": int(blocks + 1) * block * TOKEN_BYTES * runners,
        }
    )


def any_request(chance: random.Random, length: int) -> tuple[list[int], dict[str, Any]]:
    """A prompt that shares its beginning with others, and how to continue it."""
    beginning = list(range(chance.choice([0, 50]), 96))[: chance.randint(1, 36)]
    prompt = beginning + [chance.randrange(96) for _ in range(chance.randint(0, 3))]
    params: dict[str, Any] = {"max_tokens": min(length - len(prompt), chance.choice([1, 9, 99]))}
    if chance.random() < 0.5:
        params["temperature"] = 0
    else:
        params |= {"temperature": chance.choice([0.5, 1.2]), "seed": chance.randrange(9)}
    if chance.random() < 0.2:
        params |= {"repetition_penalty": 1.3, "presence_penalty": 0.5}
    if chance.random() < 0.3:
        params["stop_token_ids"] = [chance.randrange(96) for _ in range(5)]
    return prompt, params


def close_call(target: Path, prompt: list[int], params: dict[str, Any], written: list[int]) -> bool:
    """Whether the two best next tokens are so near each other that rounding decides."""
    logits = hf_logits(target, [*prompt, *written])[-1:]
    row = Row(make_request(prompt, written, **params))
    line = scores(logits, [row])[0]
    if params.get("seed") is not None:
        key = row_key(params["seed"], row.position)
        line = line + coupled_gumbel([key], 96, torch.device("cpu"))[0]
    best, second = line.topk(2).values.tolist()
    return best - second < 1e-3


def drive(busy: Engine, chance: random.Random) -> tuple[dict[str, Any], dict[str, RequestOutput]]:
    """Requests come at random moments, some leave early; who stayed, and what they got."""
    asked: dict[str, tuple[list[int], dict[str, Any]]] = {}
    got: dict[str, RequestOutput] = {}
    running: list[str] = []
    late = 10
    while late or not busy.idle:
        if late and (busy.idle or chance.random() < 0.4):
            late -= 1
            prompt, params = any_request(chance, busy.limits.max_model_len)
            running.append(busy.add_request(prompt, SamplingParams(**params)))
            asked[running[-1]] = prompt, params
        for output in busy.step():
            got.setdefault(output.request_id, RequestOutput(output.request_id)).merge(output)
            if output.finished:
                running.remove(output.request_id)
        if running and chance.random() < 0.02:
            gone = running.pop(chance.randrange(len(running)))
            busy.abort(gone)
            del asked[gone]
        busy.check_integrity()
    return asked, got


@pytest.mark.parametrize("trial", range(20))
def test_a_request_reads_the_same_whatever_happens_around_it(trial, plain, target, good_draft):
    chance = random.Random(trial)
    with Engine(any_config(chance, target, good_draft)) as busy:
        asked, got = drive(busy, chance)
    for request_id, (prompt, params) in asked.items():
        (alone,) = plain.generate([prompt], SamplingParams(**params))
        found = got[request_id].token_ids
        pairs = enumerate(zip(found, alone.token_ids, strict=False))
        cut = next((place for place, (one, other) in pairs if one != other), None)
        if cut is None:
            assert found == alone.token_ids
        else:
            assert close_call(target, prompt, params, found[:cut])


@pytest.mark.parametrize("trial", range(12))
def test_a_draft_equal_to_the_target_is_kept_whole(trial, target):
    """Stale KV of the draft would show in nothing but its acceptance."""
    chance = random.Random(trial)
    with Engine(any_config(chance, target, target, ["draft_model"])) as busy:
        _, got = drive(busy, chance)
    drafted = sum(output.stats.drafted for output in got.values())
    accepted = sum(output.stats.accepted for output in got.values())
    assert accepted >= 0.98 * drafted > 0, "more than a close call or two"
