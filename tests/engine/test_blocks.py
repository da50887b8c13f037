"""Drafts that end where a pass would have to begin another block of rows, and what a token is worth
to several of them."""

import pytest

from tandem.drafting.agenda import Turn
from tandem.drafting.asking import NO_BRIM, shared_out
from tandem.drafting.choosing import Chooser, Method
from tandem.drafting.costs import Load, RoundCosts
from tandem.drafting.lengths import JUMP, brim
from tandem.drafting.reading import Reading
from tandem.scheduler import Decode
from tests.engine.builders import make_request
from tests.engine.policy_world import LONGEST, Guess, World, of_a_model

A_BLOCK = 16


class Blocks(World):
    """The first row of a block takes far longer than the others."""

    def pass_s(self, rows):
        return super().pass_s(rows) + 0.3 * ((rows - 1) // A_BLOCK)


def seconds_of(world):
    return [0.0, *(world.pass_s(rows) for rows in range(1, 80))]


@pytest.mark.parametrize(
    ("planned", "most", "last"),
    [(10, 16, 16), (10, 17, 16), (16, 40, 16), (17, 32, 32), (17, 40, 32), (33, 70, 70)],
)
def test_rows_end_before_the_next_block(planned, most, last):
    assert brim(seconds_of(Blocks()), planned, most) == last


@pytest.mark.parametrize("row_s", [0.001, 0.06, 1.0])
def test_where_all_rows_are_alike_they_end_nowhere(row_s):
    assert brim(seconds_of(World(row_s=row_s)), 10, 40) == 40


@pytest.mark.parametrize(("jump", "last"), [(0.9 * JUMP, 40), (1.1 * JUMP, 16)])
def test_a_small_step_is_no_end(jump, last):
    assert brim([1.0] * 17 + [1.0 + jump] * 30, 10, 40) == last


def test_what_is_asked_for_is_shared_out_so_that_the_longest_is_as_short_as_can_be():
    assert shared_out([8, 2, 8], 18) == [8, 2, 8]
    assert shared_out([8, 2, 8], 17) == [7, 2, 7]
    assert shared_out([9, 9, 9, 9], 28) == [7, 7, 7, 7]
    assert shared_out([3, 1], 0) == [0, 0]


def rows_of(mixture, world, requests, rounds):
    """Of rounds in which something was drafted."""
    found = []
    for _ in range(rounds):
        draft = mixture.propose([Decode(request, LONGEST) for request in requests])
        rows = len(requests) + sum(map(len, draft.tokens))
        world.now += world.pass_s(rows)
        mixture.passed(rows, world.pass_s(rows))
        if any(draft.tokens):
            found.append(rows)
    return found


@pytest.mark.parametrize(("count", "last"), [(2, 16), (4, 32)])
@pytest.mark.parametrize("sure", [False, True])
def test_drafts_fill_a_block_and_begin_no_other(count, last, sure):
    world = Blocks()
    mixture = of_a_model(world, Guess(world, 0.9, level_s=0.01, sure=sure))
    world.run(mixture, count, LONGEST, 200)
    requests = [make_request([1, 2]) for _ in range(count)]
    rows = rows_of(mixture, world, requests, 60)
    assert max(rows) == last
    assert sum(rows) > 0.9 * last * len(rows)
    assert mixture._agenda.brim == last


def test_where_rows_are_alike_nothing_ends_drafts():
    world = World()
    mixture = of_a_model(world, Guess(world, 0.9, level_s=0.01))
    world.run(mixture, 2, LONGEST, 200)
    assert max(rows_of(mixture, world, [make_request([1, 2]) for _ in range(2)], 60)) == 18
    assert mixture._agenda.brim == NO_BRIM


def test_who_comes_shares_the_block_of_those_that_are_there():
    world = Blocks()
    mixture = of_a_model(world, Guess(world, 0.9, level_s=0.01))
    requests = [make_request([1, 2]) for _ in range(4)]
    world.run(mixture, 4, LONGEST, 200, requests)
    for _ in range(12):
        requests = [*requests[1:], make_request([1, 2])]
        assert max(rows_of(mixture, world, requests[:3], 1), default=0) <= 32
        *_, last = (mixture.propose([Decode(one, LONGEST) for one in requests]).tokens,)
        assert 4 + sum(map(len, last)) <= 32
        assert min(map(len, last)) >= 6


def test_more_requests_than_rows_were_planned_for_are_planned_anew():
    world = Blocks()
    mixture = of_a_model(world, Guess(world, 0.9, level_s=0.01))
    requests = [make_request([1, 2]) for _ in range(4)]
    world.run(mixture, 3, LONGEST, 200, requests[:3])
    agenda = mixture._agenda
    assert agenda.batch == 3 and agenda.brim == 32
    cramped = agenda._replace(brim=16)
    decodes = [Decode(one, LONGEST) for one in requests]
    planner, now = mixture.planner, mixture._rounds

    def join(one):
        known = planner.known(one.request)
        return known, planner.chooser.choose(one, known, Load(4), now)

    assert cramped.carried_on(Turn(decodes, now, True, join)) is None
    assert cramped.carried_on(Turn(decodes[:2], now, True, join)).asks.lengths == [7, 7]


def test_what_is_planned_holds_while_all_have_room_for_it():
    world = World()
    mixture = of_a_model(world, Guess(world, 0.5, level_s=0.1))
    requests = [make_request([1, 2]) for _ in range(2)]
    world.run(mixture, 2, LONGEST, 100, requests)
    agenda = mixture._agenda._replace(until=mixture._rounds + 10)
    asked = agenda.asks.lengths[0]
    assert 0 < asked < LONGEST

    def holds(rooms, some=requests, of=agenda):
        decodes = [Decode(one, room) for one, room in zip(some, rooms, strict=True)]
        return of.holds(decodes, mixture._rounds + 1)

    assert holds([LONGEST, LONGEST]) and holds([asked, LONGEST])
    assert not holds([asked - 1, LONGEST])  # less than is asked for
    assert not holds([LONGEST + 1, LONGEST])  # more than there was: it may draft further
    assert not holds([asked, LONGEST], [requests[0], make_request([1, 2])])
    assert not holds([asked, LONGEST], of=agenda._replace(by_model=False))
    assert not agenda.holds(agenda.decodes, agenda.until)


def test_of_several_drafts_one_that_ends_leaves_the_others_their_levels():
    """Alone, it saves the level too."""
    costs = RoundCosts({1: 1.0, 4096: 1.0})
    for _ in range(40):
        for requests in (1, 2, 4, 8):
            costs.observe_draft(requests, 4, 0.4, read=0)
    chooser = Chooser([Method("model", Guess(World(), 0.5), False)], LONGEST, costs, Reading(None))
    worth = [chooser.worth(1.0, [4] * count, Load(count)) for count in (1, 2, 4, 8)]
    a_level = (costs.drafts(1, 4)[4] - costs.drafts(1, 4)[2]) / 2
    assert worth[0] == pytest.approx(a_level)
    assert worth[1] < 0.2 * worth[0]
    assert max(worth[2:]) < 0.1 * worth[0]
