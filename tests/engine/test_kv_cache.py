"""The block pool: nothing lost, nothing shared that differs, and the oldest goes first."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tandem.kv_cache import BlockManager, PoolUsage
from tandem.request import Request
from tests.engine.builders import make_request

SIZE = 2


def run(blocks: BlockManager, tokens: list[int], drafted: int = 0) -> Request:
    """A request whose whole text is in the target's KV and `drafted` tokens in the draft's."""
    request = make_request(tokens)
    blocks.adopt_prefix(request)
    assert blocks.reserve(request, len(tokens))
    request.computed = len(tokens)
    request.draft_computed = drafted
    blocks.register(request)
    return request


def adopted(blocks: BlockManager, tokens: list[int]) -> Request:
    """A request that has just looked for a cached prefix."""
    request = make_request(tokens)
    blocks.adopt_prefix(request)
    return request


# -- by example --------------------------------------------------------------------------------


def test_a_table_covers_the_tokens_asked_for():
    blocks, request = BlockManager(8, SIZE, True), make_request([1, 2, 3])
    for tokens, expected in ((3, 2), (3, 2), (4, 2), (5, 3), (1, 3)):
        assert blocks.reserve(request, tokens)
        assert len(request.blocks) == expected


def test_a_reservation_that_does_not_fit_changes_nothing():
    blocks, request = BlockManager(3, SIZE, True), make_request([1, 2, 3])
    assert blocks.reserve(request, 3)
    before = (list(request.blocks), blocks.usage())
    assert not blocks.reserve(request, 7)
    assert (request.blocks, blocks.usage()) == before


def test_blocks_of_unknown_content_are_free_again_and_known_ones_cached():
    blocks = BlockManager(4, SIZE, True)
    request = run(blocks, [1, 2, 3])
    assert blocks.usage() == PoolUsage(free=2, cached=0, used=2, total=4)
    blocks.release(request)
    assert blocks.usage() == PoolUsage(free=3, cached=1, used=0, total=4)
    assert (request.blocks, request.computed, request.draft_computed) == ([], 0, 0)


def test_the_longest_cached_prefix_is_adopted():
    blocks = BlockManager(8, SIZE, True)
    first = run(blocks, [1, 2, 3, 4, 5])
    second = adopted(blocks, [1, 2, 3, 4, 9, 9, 9])
    assert second.blocks == first.blocks[:2]
    assert second.computed == 4


@pytest.mark.parametrize(("length", "computed"), [(3, 2), (4, 2), (5, 4), (6, 4)])
def test_the_last_token_is_always_left_to_compute(length, computed):
    blocks = BlockManager(8, SIZE, True)
    run(blocks, [1, 2, 3, 4, 5, 6])
    assert adopted(blocks, [1, 2, 3, 4, 5, 6][:length]).computed == computed


def test_a_block_is_a_prefix_once_the_head_has_been_there_too():
    """A head's KV lies in the block and cannot be made up later; it depends on the next token."""
    tokens = [1, 2, 3, 4, 5, 6, 7]
    for drafted, cached in ((0, 0), (3, 2), (4, 4), (6, 6)):
        blocks = BlockManager(8, SIZE, True, reads_ahead=True)
        run(blocks, tokens, drafted)
        assert adopted(blocks, [*tokens, 8]).computed == cached
        assert adopted(blocks, [1, 2, 9, 9]).computed == 0


def lose(blocks: BlockManager, tokens: list[int], drafted: int = 0) -> Request:
    """As `run`, of a request whose hidden states have not been kept for the head."""
    request = make_request(tokens)
    blocks.adopt_prefix(request, keeps_states=False)
    request.states_lost = True
    assert blocks.reserve(request, len(tokens))
    request.computed, request.draft_computed = len(tokens), max(drafted, request.draft_computed)
    blocks.register(request)
    return request


def test_a_prefix_without_the_heads_kv_is_for_those_alone_that_no_head_drafts_for():
    tokens = [1, 2, 3, 4, 5, 6, 7]
    for drafted in (0, 4):
        blocks = BlockManager(8, SIZE, True, reads_ahead=True)
        lose(blocks, tokens, drafted)
        assert adopted(blocks, [*tokens, 8]).computed == drafted
        other = make_request([*tokens, 8])
        blocks.adopt_prefix(other, keeps_states=False)
        assert (other.computed, other.draft_computed, other.states_lost) == (6, drafted, True)
    other = make_request([*tokens[:5], 9])
    blocks.adopt_prefix(other, keeps_states=False)
    assert (other.computed, other.states_lost) == (4, False)


@pytest.mark.parametrize("runs", [False, True])
def test_the_heads_kv_comes_to_a_prefix_with_the_next_request_that_has_it(runs):
    """runs: the first one still does, and keeps its blocks."""
    tokens = [1, 2, 3, 4, 5, 6, 7]
    blocks = BlockManager(16, SIZE, True, reads_ahead=True)
    first = lose(blocks, tokens)
    behind = lose(blocks, [*tokens, 8, 9])
    if not runs:
        blocks.release(first)
        blocks.release(behind)
    second = run(blocks, tokens, drafted=6)
    blocks.check_integrity(idle=False)
    third = adopted(blocks, [*tokens, 8, 9])
    assert (third.blocks, third.draft_computed) == (second.blocks[:3], 6)
    other = make_request([*tokens, 8, 9])
    blocks.adopt_prefix(other, keeps_states=False)
    assert (other.computed, other.states_lost) == (8, True)  # what is behind it is found as before
    for request in (second, third, other, *((first, behind) if runs else ())):
        blocks.release(request)
    blocks.check_integrity(idle=True)
    assert not other.states_lost


def test_the_same_tokens_behind_another_prefix_are_not_shared():
    blocks = BlockManager(8, SIZE, True)
    run(blocks, [1, 2, 3, 4, 5])
    assert adopted(blocks, [9, 9, 3, 4, 5]).blocks == []


def test_only_computed_blocks_are_shared():
    blocks, request = BlockManager(8, SIZE, True), make_request([1, 2, 3, 4, 5])
    assert blocks.reserve(request, 5)
    request.computed = 3
    blocks.register(request)
    assert adopted(blocks, request.tokens).computed == 2


def test_two_requests_with_one_text_do_not_collide():
    blocks = BlockManager(8, SIZE, True)
    pair = [make_request([1, 2, 3, 4, 5]) for _ in range(2)]
    for request in pair:
        assert blocks.reserve(request, 5)
        request.computed = 5
    for request in pair:
        blocks.register(request)
    for request in pair:
        blocks.release(request)
    blocks.check_integrity(idle=True)
    assert adopted(blocks, [1, 2, 3, 4, 9]).computed == 4


@pytest.mark.parametrize(("taken", "left"), [(1, (2, 4)), (2, (0, 4)), (3, (0, 2)), (4, (0, 0))])
def test_the_oldest_text_is_evicted_first_and_its_end_before_its_beginning(taken, left):
    for text, expected in (([1, 1, 1, 1], left[0]), ([2, 2, 2, 2], left[1])):
        blocks = BlockManager(4, SIZE, True)
        old, new = run(blocks, [1, 1, 1, 1]), run(blocks, [2, 2, 2, 2])
        blocks.release(old)
        blocks.release(new)
        assert blocks.reserve(make_request([0]), taken * SIZE)
        assert adopted(blocks, [*text, 9]).computed == expected


def test_a_text_in_use_is_never_evicted():
    blocks = BlockManager(4, SIZE, True)
    run(blocks, [1, 1, 1, 1])
    assert blocks.available() == 2
    assert not blocks.reserve(make_request([0]), 3 * SIZE)
    assert blocks.reserve(make_request([0]), 2 * SIZE)
    assert adopted(blocks, [1, 1, 1, 1, 1]).computed == 4


def test_free_blocks_are_used_before_cached_ones_are_evicted():
    blocks = BlockManager(4, SIZE, True)
    blocks.release(run(blocks, [1, 1]))
    assert blocks.reserve(make_request([0]), 3 * SIZE)
    assert adopted(blocks, [1, 1, 1]).computed == 2


@pytest.mark.parametrize(("drafted", "expected"), [(0, 0), (1, 0), (2, 2), (5, 4)])
def test_a_prefix_knows_how_far_the_draft_has_computed_it(drafted, expected):
    blocks = BlockManager(8, SIZE, True)
    blocks.release(run(blocks, [1, 2, 3, 4, 5], drafted))
    request = adopted(blocks, [1, 2, 3, 4, 5])
    assert (request.computed, request.draft_computed) == (4, expected)


def test_what_the_draft_has_read_since_is_kept_with_the_last_block():
    blocks = BlockManager(8, SIZE, True)
    request = run(blocks, [1, 2, 3, 4, 5], drafted=0)
    request.draft_computed = 4
    blocks.release(request)
    assert adopted(blocks, [1, 2, 3, 4, 5]).draft_computed == 4


def test_a_block_whose_next_token_was_cut_off_is_no_prefix():
    """A stop may cut off tokens that a head has read already."""
    blocks = BlockManager(8, SIZE, True, reads_ahead=True)
    run(blocks, [1, 2, 3, 4], drafted=4)
    blocks.check_integrity(idle=False)


def test_an_evicted_block_forgets_that_it_held_the_drafts_kv():
    blocks = BlockManager(2, SIZE, True)
    blocks.release(run(blocks, [1, 1, 1, 1], drafted=4))
    blocks.release(run(blocks, [2, 2, 2, 2], drafted=0))
    request = adopted(blocks, [2, 2, 2, 2])
    assert (request.computed, request.draft_computed) == (2, 0)


def test_without_prefix_caching_nothing_is_kept():
    blocks = BlockManager(4, SIZE, False)
    blocks.release(run(blocks, [1, 2, 3, 4]))
    assert blocks.usage() == PoolUsage(free=4, cached=0, used=0, total=4)
    assert adopted(blocks, [1, 2, 3, 4]).computed == 0


# -- by chance ---------------------------------------------------------------------------------

TOKENS = st.integers(0, 1)
NUM_BLOCKS = 7


class Pool(RuleBasedStateMachine):
    """Requests come, compute, draft, grow, are preempted and end; two dictionaries play the
    caches: each slot remembers the text, up to and with its own token, that was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockManager(NUM_BLOCKS, SIZE, True)
        self.running: list[Request] = []
        self.target: dict[int, tuple[int, ...]] = {}
        self.draft: dict[int, tuple[int, ...]] = {}

    def slot(self, request: Request, position: int) -> int:
        return request.blocks[position // SIZE] * SIZE + position % SIZE

    def fill(self, cache: dict, request: Request, start: int, end: int) -> None:
        for position in range(start, end):
            cache[self.slot(request, position)] = tuple(request.tokens[: position + 1])

    def begin(self, request: Request) -> None:
        self.blocks.adopt_prefix(request)
        if self.blocks.reserve(request, len(request.tokens)):
            self.running.append(request)
        else:
            self.blocks.release(request)

    def choose(self, index: int) -> Request:
        return self.running[index % len(self.running)]

    @rule(tokens=st.lists(TOKENS, min_size=1, max_size=9))
    def arrive(self, tokens):
        self.begin(make_request(tokens))

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 9), count=st.integers(1, 6))
    def compute(self, index, count):
        request = self.choose(index)
        end = min(len(request.tokens), request.computed + count)
        self.fill(self.target, request, request.computed, end)
        request.computed = end
        self.blocks.register(request)

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 9), count=st.integers(1, 6))
    def catch_up(self, index, count):
        request = self.choose(index)
        end = min(len(request.tokens), request.draft_computed + count)
        self.fill(self.draft, request, request.draft_computed, end)
        request.draft_computed = end

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 9), lookahead=st.integers(0, 4), kept=st.lists(TOKENS, max_size=4))
    def speculate(self, index, lookahead, kept):
        """Writes drafted tokens that are all rejected, then appends others."""
        request = self.choose(index)
        length = len(request.tokens)
        if request.computed < length or not self.blocks.reserve(request, length + lookahead):
            return
        for position in range(length, length + lookahead):
            self.target[self.slot(request, position)] = ()
            self.draft[self.slot(request, position)] = ()
        if self.blocks.reserve(request, length + len(kept)):
            request.tokens += kept

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 9))
    def finish(self, index):
        request = self.choose(index)
        self.running.remove(request)
        self.blocks.release(request)

    @precondition(lambda self: self.running)
    @rule()
    def preempt(self):
        request = self.running.pop()
        self.blocks.release(request)
        self.begin(request)

    @invariant()
    def the_pool_adds_up(self):
        self.blocks.check_integrity(idle=not self.running)
        held = {block for request in self.running for block in request.blocks}
        assert self.blocks.usage().used == len(held)

    @invariant()
    def every_cache_holds_each_requests_own_text(self):
        for request in self.running:
            for cache, length in (
                (self.target, request.computed),
                (self.draft, request.draft_computed),
            ):
                for position in range(length):
                    expected = tuple(request.tokens[: position + 1])
                    assert cache[self.slot(request, position)] == expected


class HeadsPool(Pool):
    """A head in the draft's place, whose KV depends on the next token too; it is not shown all."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockManager(NUM_BLOCKS, SIZE, True, reads_ahead=True)
        self.keeps_states = True

    def begin(self, request: Request) -> None:
        self.blocks.adopt_prefix(request, self.keeps_states)
        if self.blocks.reserve(request, len(request.tokens)):
            self.running.append(request)
        else:
            self.blocks.release(request)

    def fill(self, cache: dict, request: Request, start: int, end: int) -> None:
        ahead = 1 if cache is self.draft else 0
        for position in range(start, end):
            cache[self.slot(request, position)] = tuple(request.tokens[: position + 1 + ahead])

    @rule(keeps=st.booleans())
    def decide(self, keeps):
        self.keeps_states = keeps

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 9))
    def lose(self, index):
        self.choose(index).states_lost = True

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 9), count=st.integers(1, 6))
    def catch_up(self, index, count):
        request = self.choose(index)
        end = min(request.computed, len(request.tokens) - 1, request.draft_computed + count)
        if request.states_lost or end <= request.draft_computed:
            return
        self.fill(self.draft, request, request.draft_computed, end)
        request.draft_computed = end
        self.blocks.register(request)

    @invariant()
    def who_is_drafted_for_has_the_heads_kv_of_all_that_was_adopted(self):
        for request in self.running:
            if not request.states_lost:
                adopted = len(request.block_keys) * SIZE
                assert request.draft_computed >= adopted

    @invariant()
    def every_cache_holds_each_requests_own_text(self):
        for request in self.running:
            for cache, length, ahead in (
                (self.target, request.computed, 0),
                (self.draft, request.draft_computed, 1),
            ):
                for position in range(length):
                    expected = tuple(request.tokens[: position + 1 + ahead])
                    assert cache[self.slot(request, position)] == expected


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=120, stateful_step_count=40)
TestHeadsPool = HeadsPool.TestCase
TestHeadsPool.settings = settings(max_examples=120, stateful_step_count=40)
