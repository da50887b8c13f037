"""The soak's account finds what does not add up."""

import pytest

from tools.soak.account import Account, troubles
from tools.soak.health import Asked, too_slow
from tools.soak.traffic import Ends
from tools.soak.watch import Sample, trend


def ends(left_begun=0, **counts):
    made = Ends()
    made.counts.update(counts)
    made.left_begun = left_begun
    return made


def server(busy=0.0, restarts=0, **outcomes):
    return Account(outcomes, busy, 0, restarts)


@pytest.mark.parametrize(
    ("clients", "counted"),
    [
        (ends(length=5, invalid=2), server(length=5, invalid=2)),
        (ends(length=5, left=4, left_begun=2), server(length=6, abort=2)),  # one never arrived
        (ends(left=3, left_begun=3), server(abort=1, stop=1, queue_full=1)),
    ],
)
def test_what_adds_up(clients, counted):
    assert troubles(clients, counted) == []


@pytest.mark.parametrize(
    ("clients", "counted", "said"),
    [
        (ends(length=5), server(length=4), "1 more answers 'length'"),
        (ends(length=5), server(length=6), "counted 1 more ends"),
        (ends(invalid=1, left=1), server(invalid=2), "1 more 'invalid'"),
        (ends(left=2, left_begun=2), server(abort=1), "counted 1 more ends"),
        (ends(length=1), server(length=1, busy=0.5), "not idle"),
        (ends(length=1), server(length=1, restarts=1), "started again"),
        (ends(left=1), server(engine_lost=1), "'engine_lost'"),
    ],
)
def test_what_does_not(clients, counted, said):
    (found, *_) = troubles(clients, counted)
    assert said in found


def test_memory_that_grows_is_told_from_memory_that_is_taken_once():
    taken = [Sample(second, 100.0 if second < 20 else 400.0) for second in range(100)]
    grows = [Sample(second, 300.0 + second) for second in range(100)]
    assert trend(taken).flat
    assert trend(taken).growth_mib == pytest.approx(0)
    assert not trend(grows).flat
    assert trend(grows).growth_mib == pytest.approx(49)


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        ([1.0] * 80 + [300.0] * 2, ""),  # two may be late, ...
        ([1.0] * 80 + [300.0] * 3, "3 times of 83"),
        ([1.0] * 500 + [300.0] * 7, ""),  # ... and of many one of a hundred more
        ([1.0] * 500 + [300.0] * 8, "8 times of 508"),
        ([], "never told"),
    ],
)
def test_health_that_is_told_late_is_noticed(ms, said):
    found = too_slow([Asked(one, 0.0) for one in ms])
    assert [said in sentence for sentence in found] == ([True] if said else [])


def test_a_wait_of_the_askers_own_is_not_the_servers():
    assert too_slow([Asked(300.0, 290.0)] * 50) == []
