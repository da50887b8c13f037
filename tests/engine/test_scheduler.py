"""Continuous batching: budgets, order, chunks, preemption and how far to look ahead."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem import EngineConfig
from tandem.errors import NO_ROOM, QueueFullError
from tandem.kv_cache import BlockManager
from tandem.metrics import Meters
from tandem.request import Request
from tandem.scheduler import Decode, Prefill, Scheduler, StepPlan
from tests.engine.builders import make_request

BUDGET = 16


def make_scheduler(
    num_blocks: int = 64, prefix_caching: bool = False, draft_reach: int = 10_000, **parameters
) -> Scheduler:
    """A scheduler over blocks of two tokens which drafts at most three."""
    defaults = {
        "speculative_method": "ngram",
        "num_speculative_tokens": 3,
        "max_num_batched_tokens": BUDGET,
        "max_num_seqs": 4,
        "block_size": 2,
    }
    config = EngineConfig(model="none", **defaults | parameters)
    blocks = BlockManager(num_blocks, config.block_size, prefix_caching)
    return Scheduler(config, blocks, Meters(), draft_reach)


def queue(scheduler: Scheduler, *lengths: int, **fields) -> list[Request]:
    """Requests with prompts of these lengths, no two of them alike."""
    prompts = [[100 * index + place for place in range(n)] for index, n in enumerate(lengths)]
    requests = [make_request(prompt, **fields) for prompt in prompts]
    for request in requests:
        scheduler.add(request)
    return requests


def test_of_those_that_wait_as_many_count_as_there_is_room_for():
    scheduler = make_scheduler()
    queue(scheduler, 1, 1, 1)
    assert scheduler.load == (0, 3)
    scheduler.schedule()
    queue(scheduler, 1, 1, 1)
    assert scheduler.load == (3, 1)


def play(plan: StepPlan, gain: int = 1) -> None:
    """Does what the engine does to the requests of a step; decodes gain at most `gain` tokens."""
    for request, lookahead in plan.decodes:
        got = min(gain, lookahead + 1)
        request.computed += got
        request.tokens += [7] * got
    for request, length in plan.prefills:
        request.computed += length
        if request.computed == len(request.tokens):
            request.tokens.append(7)


def decoding(scheduler: Scheduler, *lengths: int, **fields) -> list[Request]:
    """Requests that have been prefilled and decode in the next step."""
    requests = queue(scheduler, *lengths, **fields)
    while not all(request in scheduler.running and request.num_output for request in requests):
        play(scheduler.schedule())
    return requests


# -- admission and prefill ---------------------------------------------------------------------


def test_prompts_share_the_budget_in_the_order_of_arrival():
    scheduler = make_scheduler()
    first, second, third = queue(scheduler, 10, 10, 3)
    assert scheduler.schedule().prefills == [Prefill(first, 10), Prefill(second, 6)]
    assert scheduler.waiting == [third]


def test_a_long_prompt_is_computed_in_chunks_and_only_the_last_yields_a_token():
    scheduler = make_scheduler()
    (request,) = queue(scheduler, 40)
    chunks = []
    for _ in range(3):
        plan = scheduler.schedule()
        chunks += [(chunk.length, chunk.last) for chunk in plan.prefills]
        play(plan)
    assert chunks == [(16, False), (16, False), (8, True)]
    assert request.num_output == 1


def test_decoding_requests_come_before_prompts():
    scheduler = make_scheduler()
    (old,) = decoding(scheduler, 3)
    (new,) = queue(scheduler, 40)
    assert scheduler.schedule() == ([Decode(old, 3)], [Prefill(new, BUDGET - 4)])


def test_no_more_than_max_num_seqs_run():
    scheduler = make_scheduler(max_num_seqs=2)
    first, second, third = queue(scheduler, 1, 1, 1)
    scheduler.schedule()
    assert scheduler.running == [first, second]
    scheduler.remove(first)
    scheduler.schedule()
    assert scheduler.running == [second, third]


def test_lower_priorities_are_served_first_and_equal_ones_as_they_come():
    scheduler = make_scheduler()
    (late,) = queue(scheduler, 2, priority=5)
    first, second = queue(scheduler, 2, 2)
    (urgent,) = queue(scheduler, 12, priority=-5)
    assert scheduler.waiting == [urgent, first, second, late]
    assert [chunk.request for chunk in scheduler.schedule().prefills] == [urgent, first, second]


def test_who_runs_goes_on_though_somebody_more_important_waits():
    scheduler = make_scheduler(max_num_seqs=1)
    (running,) = decoding(scheduler, 2, priority=9)
    queue(scheduler, 2, priority=-9)
    assert scheduler.schedule() == ([Decode(running, 3)], [])


def test_a_prompt_that_does_not_fit_holds_up_those_behind_it():
    scheduler = make_scheduler(num_blocks=4)
    decoding(scheduler, 3)
    queue(scheduler, 6, 1)
    assert scheduler.schedule().prefills == []
    assert len(scheduler.waiting) == 2


def test_a_cached_prefix_is_not_computed_again():
    scheduler = make_scheduler(prefix_caching=True)
    (old,) = decoding(scheduler, 9)
    scheduler.blocks.register(old)
    (new,) = queue(scheduler, 9)
    assert scheduler.schedule().prefills == [Prefill(new, 1)]


def test_a_full_queue_refuses_and_says_so():
    scheduler = make_scheduler(max_queue_size=2)
    queue(scheduler, 1, 1)
    with pytest.raises(QueueFullError, match=NO_ROOM) as error:
        scheduler.add(make_request([1]))
    assert str(error.value).startswith("2 requests are waiting")
    assert len(scheduler.waiting) == 2


def test_removed_requests_leave_nothing_behind():
    scheduler = make_scheduler(max_num_seqs=1)
    first, second = queue(scheduler, 5, 5)
    scheduler.schedule()
    scheduler.remove(second)
    scheduler.remove(first)
    assert scheduler.idle
    scheduler.blocks.check_integrity(idle=True)


# -- preemption --------------------------------------------------------------------------------


def test_the_latest_arrival_gives_way_and_returns_to_the_head_of_the_queue():
    scheduler = make_scheduler(num_blocks=6, speculative_method="none")
    first, second = decoding(scheduler, 4, 4)
    queue(scheduler, 1)
    text = list(second.tokens)
    for _ in range(3):
        plan = scheduler.schedule()
        play(plan)
    assert plan.decodes == [Decode(first, 0)]
    assert scheduler.waiting[0] is second
    assert second.tokens[: len(text)] == text
    assert (second.blocks, second.computed, second.preemptions) == ([], 0, 1)
    assert scheduler.num_preemptions == 1


def test_the_least_important_gives_way_and_returns_to_its_place():
    scheduler = make_scheduler(num_blocks=6, speculative_method="none")
    (idle,) = decoding(scheduler, 4, priority=1)
    (busy,) = decoding(scheduler, 4)
    (later,) = queue(scheduler, 1, priority=2)
    (urgent,) = queue(scheduler, 9, priority=-1)
    for _ in range(3):
        plan = scheduler.schedule()
        play(plan)
    assert plan.decodes == [Decode(busy, 0)]
    assert scheduler.waiting == [urgent, idle, later]
    assert (idle.preemptions, busy.preemptions) == (1, 0)


def test_lookahead_is_given_up_before_anyone_is_preempted():
    scheduler = make_scheduler(num_blocks=6)
    first, second = decoding(scheduler, 4, 4)
    assert scheduler.schedule().decodes == [Decode(first, 0), Decode(second, 0)]
    assert scheduler.num_preemptions == 0


# -- lookahead ---------------------------------------------------------------------------------


def test_where_nothing_will_be_drafted_no_room_is_found_for_it():
    scheduler = make_scheduler()
    (request,) = decoding(scheduler, 3)
    (arrival,) = queue(scheduler, 2 * BUDGET)
    plan = scheduler.schedule(may_draft=False)
    assert plan == ([Decode(request, 0)], [Prefill(arrival, BUDGET - 1)])


@pytest.mark.parametrize(("own", "expected"), [(None, 3), (0, 0), (1, 1), (9, 3)])
def test_a_request_may_ask_for_fewer_drafted_tokens_but_not_for_more(own, expected):
    scheduler = make_scheduler()
    (request,) = decoding(scheduler, 3, num_draft_tokens=own)
    assert scheduler.schedule().decodes == [Decode(request, expected)]


@pytest.mark.parametrize(("room", "expected"), [(1, 0), (2, 1), (3, 2), (4, 3), (5, 3)])
def test_nothing_is_drafted_beyond_the_last_token(room, expected):
    scheduler = make_scheduler()
    (request,) = decoding(scheduler, 3, max_total=4 + room)
    assert scheduler.schedule().decodes == [Decode(request, expected)]


@pytest.mark.parametrize(("limit", "expected"), [(1, 0), (2, 0), (3, 3), (None, 3)])
def test_large_batches_are_not_drafted_for(limit, expected):
    scheduler = make_scheduler(speculative_disable_by_batch_size=limit)
    decoding(scheduler, 3, 3)
    assert [decode.lookahead for decode in scheduler.schedule().decodes] == [expected] * 2


def test_lookahead_takes_only_what_every_request_leaves_over():
    scheduler = make_scheduler(max_num_seqs=7)
    decoding(scheduler, *[1] * 7)
    drafted = [[decode.lookahead for decode in scheduler.schedule().decodes] for _ in range(7)]
    assert all(sorted(lengths) == [1, 1, 1, 1, 1, 2, 2] for lengths in drafted)
    assert {sum(of) for of in zip(*drafted, strict=True)} == {9}  # everybody in turn


@pytest.mark.parametrize(("own", "expected"), [(None, [2, 2]), (1, [1, 3]), (0, [0, 3])])
def test_drafts_share_their_budget_and_take_what_others_leave(own, expected):
    scheduler = make_scheduler(speculative_token_budget=4)
    first, _ = decoding(scheduler, 3, 3)
    first.params = first.params.model_copy(update={"num_draft_tokens": own})
    assert [decode.lookahead for decode in scheduler.schedule().decodes] == expected


def test_lookahead_slots_are_reserved():
    scheduler = make_scheduler()
    (request,) = decoding(scheduler, 3)
    scheduler.schedule()
    assert len(request.blocks) * 2 >= len(request.tokens) + 3


# -- whole runs --------------------------------------------------------------------------------


def check(scheduler: Scheduler, plan: StepPlan, arrival: dict[Request, int]) -> None:
    """What holds after every step's scheduling."""
    config, blocks = scheduler.config, scheduler.blocks
    cost = [1 + decode.lookahead for decode in plan.decodes]
    cost += [chunk.length for chunk in plan.prefills]
    assert 0 < sum(cost) <= config.max_num_batched_tokens
    assert min(cost) > 0
    assert len(scheduler.running) <= config.max_num_seqs
    chosen = [item.request for item in (*plan.decodes, *plan.prefills)]
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(scheduler.running)
    for request, lookahead in plan.decodes:
        assert len(request.tokens) + lookahead < request.max_total
        assert len(request.blocks) * blocks.block_size >= len(request.tokens) + lookahead
    for request, length in plan.prefills:
        assert len(request.blocks) * blocks.block_size >= request.computed + length
        assert request.computed + length <= len(request.tokens)
    check_order(scheduler, arrival)
    blocks.check_integrity(idle=scheduler.idle)


def check_order(scheduler: Scheduler, arrival: dict[Request, int]) -> None:
    """Nobody overtakes an equal, and only among those who run may somebody less important be
    ahead."""
    for requests in (scheduler.running, scheduler.waiting):
        ranks = [(request.params.priority, arrival[request]) for request in requests]
        assert ranks == sorted(ranks), "someone overtook"
    both = [*scheduler.running, *scheduler.waiting]
    for priority in {request.params.priority for request in both}:
        equals = [arrival[request] for request in both if request.params.priority == priority]
        assert equals == sorted(equals), "someone overtook"


@settings(max_examples=100)
@given(
    priorities=st.sampled_from([[0], [-1, 0, 1]]),
    lengths=st.lists(st.tuples(st.integers(1, 24), st.integers(1, 12)), min_size=1, max_size=9),
    num_blocks=st.integers(18, 40),
    max_num_seqs=st.integers(1, 6),
    caching=st.booleans(),
    chance=st.randoms(use_true_random=False),
)
def test_every_request_gets_all_its_tokens_whatever_happens(
    priorities, lengths, num_blocks, max_num_seqs, caching, chance: random.Random
):
    scheduler = make_scheduler(num_blocks, caching, max_num_seqs=max_num_seqs)
    requests = [
        make_request(
            [chance.randrange(2) for _ in range(n)],
            max_total=n + more,
            priority=chance.choice(priorities),
        )
        for n, more in lengths
    ]
    arrival = {request: index for index, request in enumerate(requests)}
    prompts = [list(request.tokens) for request in requests]
    late = list(requests)
    while late or not scheduler.idle:
        while late and (scheduler.idle or chance.random() < 0.5):
            scheduler.add(late.pop(0))
        plan = scheduler.schedule()
        check(scheduler, plan, arrival)
        play(plan, chance.randint(1, 4))
        for request in list(scheduler.running):
            scheduler.blocks.register(request)
            if len(request.tokens) >= request.max_total:
                scheduler.remove(request)
    assert [request.tokens[: request.num_prompt] for request in requests] == prompts
    assert all(len(request.tokens) == request.max_total for request in requests)
    scheduler.blocks.check_integrity(idle=True)


def test_drafts_leave_room_for_arrivals():
    scheduler = make_scheduler(num_speculative_tokens=8)
    decoding(scheduler, 2, 2, max_total=60)
    queue(scheduler, 6)
    plan = scheduler.schedule()
    assert [chunk.length for chunk in plan.prefills] == [6]
    assert sum(lookahead for _, lookahead in plan.decodes) == (BUDGET - 2) // 2
