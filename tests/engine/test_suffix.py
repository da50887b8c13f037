"""Suffix decoding: lossless, and the better the more it has seen."""

import pytest

from tandem import SamplingParams
from tandem.scheduler import Decode
from tests.engine.builders import make_request
from tests.engine.references import hf_greedy

LENGTH = 48
PROMPTS = [[5, 6, 7, 8] * 4, [9, 10, 11], [1, 2, 3, 1, 2, 3, 1]]
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH)


@pytest.fixture(params=[None, 2], ids=["chain", "tree"])
def suffix(request, engine):
    def make(**more):
        tree = {"speculative_tree": request.param} if request.param else {}
        return engine(speculative_method="suffix", num_speculative_tokens=8, **tree, **more)

    return make


@pytest.mark.parametrize("batch", [1, 4])
def test_greedy_text_is_the_targets_own_at_first_and_when_known(suffix, target, batch):
    expected = hf_greedy(target, PROMPTS, LENGTH)
    one = suffix(max_num_seqs=batch)
    accepted = []
    for _ in range(3):
        outputs = one.generate(PROMPTS, GREEDY)
        assert [output.token_ids for output in outputs] == expected
        accepted.append(sum(output.stats.accepted for output in outputs))
    assert accepted[1] > accepted[0]
    assert accepted[1] > len(PROMPTS) * LENGTH // 2  # all of it has been seen before


def test_a_seed_decides_the_text(suffix, engine):
    params = [SamplingParams(seed=index, max_tokens=LENGTH) for index in range(len(PROMPTS))]
    plain = engine().generate(PROMPTS, params)
    one = suffix()
    for _ in range(2):
        outputs = one.generate(PROMPTS, params)
        assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]


def test_without_a_memory_each_request_has_its_own_text_alone(suffix):
    one = suffix(suffix_decoding_max_cached_requests=0)
    accepted = [
        sum(output.stats.accepted for output in one.generate(PROMPTS, GREEDY)) for _ in range(2)
    ]
    assert accepted[0] == accepted[1]


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_last_tokens_of_an_answer_are_remembered_too(suffix, adaptive):
    one = suffix(adaptive_speculation=adaptive)
    [answer] = one.generate([PROMPTS[1]], SamplingParams(temperature=1, seed=3, max_tokens=6))
    *text, last = answer.token_ids
    assert last not in text  # nobody could guess it
    proposer = one.proposer.lookups.methods[0].proposer if adaptive else one.proposer
    found = proposer.propose([Decode(make_request(text), 1)])
    assert found.tokens == [[last]]


def test_requests_that_end_are_forgotten_and_old_answers_leave(suffix):
    one = suffix(suffix_decoding_max_cached_requests=2)
    one.generate(PROMPTS * 3, GREEDY)
    one.add_request(PROMPTS[0], GREEDY, "gone")
    one.step()
    one.abort("gone")
    cache = one.proposer.cache
    assert not list(cache.active_requests)
    assert len(cache.cached_requests) <= 2
