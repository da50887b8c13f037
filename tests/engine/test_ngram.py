"""Prompt lookup against its definition, written out plainly."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tandem.drafting.ngram import NgramIndex, NgramProposer
from tandem.scheduler import Decode
from tests.engine.builders import make_request

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=24)


def lookup(tokens: list[int], count: int, smallest: int = 1, largest: int = 3) -> list[int]:
    index = NgramIndex(smallest, largest)
    index.extend(tokens)
    return index.lookup(tokens, count)


def plain_lookup(tokens: list[int], count: int, smallest: int, largest: int) -> list[int]:
    """The longest end of the text that occurred before, at its latest place, and what followed;
    where that runs into the end, what has been proposed goes on the text."""
    for size in range(min(largest, len(tokens) - 1), smallest - 1, -1):
        for start in range(len(tokens) - 1, size - 1, -1):
            if tokens[start - size : start] == tokens[len(tokens) - size :]:
                text = list(tokens)
                for step in range(count):
                    text.append(text[start + step])
                return text[len(tokens) :]
    return []


@given(TOKENS, st.integers(0, 8), st.integers(1, 3), st.integers(0, 3))
@example([0], 4, 1, 2)
@example([1, 1], 4, 1, 2)
def test_proposals_are_those_of_the_definition(tokens, count, smallest, more):
    expected = plain_lookup(tokens, count, smallest, smallest + more)
    assert lookup(tokens, count, smallest, smallest + more) == expected


@given(TOKENS, st.lists(st.integers(0, 30), max_size=6))
def test_an_index_that_grew_with_the_text_equals_a_fresh_one(tokens, cuts):
    grown, fresh = NgramIndex(1, 3), NgramIndex(1, 3)
    for cut in sorted(cuts):
        grown.extend(tokens[:cut])
    grown.extend(tokens)
    fresh.extend(tokens)
    assert grown.follower == fresh.follower


def test_the_longest_match_wins_over_a_later_one():
    assert lookup([1, 2, 3, 7, 3, 8, 1, 2, 3], 1) == [7]


def test_the_latest_of_equal_matches_wins():
    assert lookup([1, 2, 7, 1, 2, 8, 1, 2], 1) == [8]


def test_a_repetition_is_continued_beyond_the_end_of_the_text():
    assert lookup([5, 1, 2, 3, 1, 2, 3], 7) == [1, 2, 3, 1, 2, 3, 1]
    assert lookup([4, 4], 3) == [4, 4, 4]


@pytest.mark.parametrize(("smallest", "expected"), [(1, [9]), (2, [9]), (3, [])])
def test_matches_shorter_than_the_minimum_do_not_count(smallest, expected):
    assert lookup([1, 2, 9, 5, 1, 2], 1, smallest, 4) == expected


def test_matches_are_no_longer_than_the_maximum():
    text = [1, 2, 3, 7, 0, 2, 3, 8, 1, 2, 3]
    assert lookup(text, 1, 1, 3) == [7]
    assert lookup(text, 1, 1, 2) == [8]


def test_an_unseen_end_proposes_nothing():
    assert lookup([1, 2, 3], 4) == []


class CountingDict(dict):
    """A dictionary that counts how often it is asked."""

    asked = 0

    def get(self, *arguments):
        self.asked += 1
        return super().get(*arguments)


@pytest.mark.parametrize("text", [[7] * 2000, [1, 2] * 1000, list(range(2000))])
def test_a_lookup_costs_the_same_however_often_the_text_repeats(text):
    index = NgramIndex(2, 5)
    index.extend(text)
    index.follower = CountingDict(index.follower)
    index.lookup(text, 4)
    assert index.follower.asked <= 4
    assert len(index.follower) <= 4 * len(text)


# -- the proposer ------------------------------------------------------------------------------


def test_the_output_is_searched_as_well_as_the_prompt():
    proposer = NgramProposer(2, 3)
    request = make_request([1, 2, 3], output=[8, 9, 5])
    assert proposer.propose([Decode(request, 2)]).tokens == [[]]
    request.tokens += [8, 9]
    assert proposer.propose([Decode(request, 2)]).tokens == [[5, 8]]


def test_a_match_may_span_prompt_and_output():
    request = make_request([0, 1, 2], output=[3, 9, 2, 3])
    assert NgramProposer(2, 3).propose([Decode(request, 1)]).tokens == [[9]]


def test_each_request_is_searched_alone_and_gets_at_most_its_lookahead():
    first, second = make_request([1, 2, 3, 1, 2]), make_request([1, 2, 4, 1, 2])
    decodes = [Decode(first, 3), Decode(second, 1), Decode(first, 0)]
    draft = NgramProposer(2, 3).propose(decodes)
    assert draft.tokens == [[3, 1, 2], [4], []]
    assert draft.parents is None
    assert draft.q is None


def test_an_index_goes_with_its_request():
    proposer = NgramProposer(2, 3)
    request = make_request([1, 2, 3, 1, 2])
    proposer.propose([Decode(request, 1)])
    index = weakref.ref(proposer.indexes[request])
    assert index() is not None
    del request
    gc.collect()
    assert index() is None
