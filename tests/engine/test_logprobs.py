"""Logprobs: of the model's own distribution, whatever is drawn from it and however."""

from __future__ import annotations

import pytest
import torch

from tandem import SamplingParams
from tandem.output import gather_logprobs
from tests.engine.references import hf_logits
from tests.engine.texts import byte_level

GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("temperature", [0.0, 1.3])
@pytest.mark.parametrize("draft", [False, True])
def test_logprobs_are_those_of_the_model(engine, target, good_draft, count, temperature, draft):
    one = engine(**({"draft_model": good_draft} if draft else {}))
    params = SamplingParams(temperature=temperature, max_tokens=12, logprobs=count, top_k=9)
    (output,) = one.generate([1, 2, 3], params)
    expected = hf_logits(target, [1, 2, 3, *output.token_ids])[2:-1].log_softmax(-1)
    assert len(output.logprobs) == 12
    for token, found, line in zip(output.token_ids, output.logprobs, expected, strict=True):
        best = line.topk(count).indices.tolist()
        assert found.sampled == token
        assert set(found.entries) == {token, *best}
        for entry, (value, rank, text) in found.entries.items():
            assert value == pytest.approx(float(line[entry]), abs=1e-4)
            assert rank == int((line > line[entry]).sum()) + 1
            assert text == f"t{entry}"
    own = torch.stack([line[t] for line, t in zip(expected, output.token_ids, strict=True)])
    assert output.cumulative_logprob == pytest.approx(float(own.sum()), abs=1e-3)


def test_logprobs_behind_a_trees_nodes_are_those_of_its_path(
    engine, target, good_draft, monkeypatch
):
    one = engine(draft_model=good_draft, num_speculative_tokens=8, speculative_tree=3)
    turned: list[bool] = []
    compact = one._compact

    def watched(plan, verdicts):
        turned.extend(v.path != list(range(1, 1 + len(v.path))) for v in verdicts)
        compact(plan, verdicts)

    monkeypatch.setattr(one, "_compact", watched)
    prompts = [[n, n + 1, n + 2] for n in range(6)]
    outputs = one.generate(prompts, SamplingParams(temperature=0, max_tokens=24, logprobs=0))
    for prompt, output in zip(prompts, outputs, strict=True):
        lines = hf_logits(target, [*prompt, *output.token_ids])[2:-1].log_softmax(-1)
        for line, found in zip(lines, output.logprobs, strict=True):
            value, rank, _ = found.entries[found.sampled]
            assert value == pytest.approx(float(line[found.sampled]), abs=1e-4)
            assert rank == 1
    assert any(turned)


def test_logprobs_do_not_depend_on_sampling_parameters(engine):
    edits = {"logit_bias": {3: 5.0}, "repetition_penalty": 1.5, "top_p": 0.5, "min_tokens": 1}
    one = engine()
    params = SamplingParams(temperature=0.4, max_tokens=1, logprobs=3, seed=1, **edits)
    (plain,) = one.generate([1, 2], SamplingParams(temperature=0, max_tokens=1, logprobs=3))
    (edited,) = one.generate([1, 2], params)
    best = sorted(plain.logprobs[0].entries.items(), key=lambda item: item[1][1])[:3]
    for token, entry in best:
        assert edited.logprobs[0].entries[token] == pytest.approx(entry, abs=1e-5)


def test_a_streams_logprobs_add_up(engine, good_draft):
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=0)
    parts = list(engine(draft_model=good_draft).stream([1, 2, 3], params))
    total = 0.0
    for part in parts:
        assert len(part.logprobs) == len(part.token_ids) == len(part.drafted)
        total += sum(entry.entries[entry.sampled][0] for entry in part.logprobs)
        assert part.cumulative_logprob == pytest.approx(total)


def test_equal_tokens_have_equal_ranks():
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, 0.0]])
    for token in (1, 3):
        (found,) = gather_logprobs(logits, [token], 3, byte_level())
        assert {i: rank for i, (_, rank, _) in found.entries.items()} == {1: 1, 3: 1, 2: 3}


def test_without_asking_there_are_no_logprobs(engine):
    (output,) = engine().generate("t1", GREEDY)
    assert output.logprobs == []
    assert output.cumulative_logprob == 0.0


def test_each_request_of_a_batch_gets_its_own(engine, good_draft):
    one = engine(draft_model=good_draft)
    prompts = [[1, 2, 3], [9, 8, 7, 6], [40]]
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=2)
    together = one.generate(prompts, params)
    for prompt, output in zip(prompts, together, strict=True):
        (alone,) = one.generate(prompt, params)
        assert alone.token_ids == output.token_ids
        assert [set(found.entries) for found in alone.logprobs] == [
            set(found.entries) for found in output.logprobs
        ]
        assert output.cumulative_logprob == pytest.approx(alone.cumulative_logprob, abs=1e-4)
