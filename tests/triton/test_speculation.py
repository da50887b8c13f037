"""Speculation changes the speed, not the text, and says how it went."""

import pytest

from tests.triton.conftest import PROMPT
from tests.triton.protocol import joined, last_of, responses, sampling, stream

STATS = {
    "acceptance_rate",
    "total_draft_tokens",
    "total_accepted_draft_tokens",
    "num_rounds",
}


def test_greedy_text_is_the_targets_own(urls):
    expected = joined(stream(urls.grpc, PROMPT, max_tokens=64, k=0), "output_ids")
    for k in (1, 2, 4):
        assert joined(stream(urls.grpc, PROMPT, max_tokens=64, k=k), "output_ids") == expected
    assert joined(stream(urls.grpc, PROMPT, max_tokens=64), "output_ids") == expected


def test_seeded_text_is_the_same_with_and_without(urls):
    keys = {"max_tokens": 48, "temperature": 0.8, "seed": 11}
    expected = joined(stream(urls.grpc, PROMPT, k=0, **keys), "output_ids")
    assert joined(stream(urls.grpc, PROMPT, **keys), "output_ids") == expected


def test_statistics_come_with_the_last_tokens(urls):
    answer = stream(urls.grpc, PROMPT, max_tokens=64)
    last = last_of(answer)
    assert set(last) >= STATS
    assert all(len(joined(answer, name)) == 1 for name in STATS)
    [drafted] = last["total_draft_tokens"]
    [accepted] = last["total_accepted_draft_tokens"]
    [rounds] = last["num_rounds"]
    assert 0 < accepted <= drafted
    assert 0 < rounds <= drafted
    assert last["acceptance_rate"] == [pytest.approx(accepted / drafted)]


@pytest.mark.parametrize("keys", [{"k": 0}, {"speculative_method": "none"}], ids=str)
def test_without_drafts_the_statistics_are_zero(urls, keys):
    last = last_of(stream(urls.grpc, PROMPT, max_tokens=16, **keys))
    assert {name: last[name] for name in STATS} == {name: [0] for name in STATS}


def test_a_draft_is_no_longer_than_the_request_allows(urls):
    last = last_of(stream(urls.grpc, PROMPT, max_tokens=32, k=2))
    assert last["total_draft_tokens"][0] <= 2 * last["num_rounds"][0]


def test_every_id_says_who_wrote_it(urls):
    answer = stream(urls.grpc, PROMPT, max_tokens=64)
    for response in answer:
        if response.outputs:
            ids, marks = response.outputs["output_ids"], response.outputs["output_drafted"]
            assert len(marks) == len(ids)
    marked = sum(joined(answer, "output_drafted"))
    [accepted] = joined(answer, "total_accepted_draft_tokens")
    # A last round may be cut by the token limit after its tokens were accepted.
    assert 0 < marked <= accepted
    assert accepted - marked <= 16
    assert not any(joined(stream(urls.grpc, PROMPT, max_tokens=16, k=0), "output_drafted"))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"return_speculation_stats": True}, STATS),
        ({"return_output_ids": True}, {"output_ids"}),
        ({"return_speculation_stats": False, "return_output_ids": False}, set()),
    ],
)
def test_optional_outputs_come_only_when_asked_for(urls, asked, expected):
    inputs = {"text_input": PROMPT, "sampling_parameters": sampling(max_tokens=8)}
    answer = list(responses(urls.grpc, inputs | asked))
    names = {name for response in answer for name in response.outputs}
    assert names == {"text_output"} | expected
