"""Short versions of `make soak`: all adds up, and memory is flat."""

import pytest

from tools.soak.cancels import cancels, cells
from tools.soak.reloads import reloads
from tools.soak.runs import MOST_REQUESTS, Result, faults, overload, soak

pytestmark = pytest.mark.timeout(900)

MINUTES = 2


def check(result: Result) -> None:
    """What comes late is `make soak`'s to say, on a machine with nothing beside."""
    assert not result.troubles, "\n".join(result.troubles)


def test_mixed_traffic_with_a_thousand_cancels():
    result = soak("tandem", MOST_REQUESTS, MINUTES, concurrency=24)
    check(result)
    assert result.minutes >= MINUTES
    assert result.clients["left"] >= 1000
    assert min(result.clients[one] for one in ("length", "stop", "invalid")) > 0
    assert result.server.outcomes["abort"] > 500  # and not answered in vain
    assert result.server.preemptions > 0


@pytest.mark.vllm
def test_mixed_traffic_on_vllm():
    result = soak("tandem_vllm", 400, minutes=6, concurrency=12)
    check(result)
    assert sum(result.clients.values()) == 400
    assert min(result.clients[one] for one in ("left", "length", "stop", "invalid")) > 0
    assert result.server.outcomes["abort"] > 50
    assert result.server.preemptions > 0


def test_mixed_traffic_while_the_engine_is_killed():
    """Or its other rank."""
    result = faults("tandem_tp", minutes=0.5, every=5, concurrency=12)
    check(result)
    assert len(result.kills) >= 2
    assert result.clients["engine_lost"] > 0
    assert min(result.clients[one] for one in ("left", "length", "invalid")) > 0


def test_ten_times_what_can_be_answered():
    result = overload("tandem", factor=10, seconds=8)
    check(result)
    assert result.clients["queue_full"] > result.clients["length"]


@pytest.mark.vllm
def test_ten_times_what_vllm_can_answer():
    result = overload("tandem_vllm", factor=10, seconds=8)
    check(result)
    assert result.clients["queue_full"] > result.clients["length"]


def test_loads_and_unloads():
    check(reloads("tandem", times=3))


def test_loads_and_unloads_of_ranks():
    check(reloads("tandem_tp", times=2))


@pytest.mark.vllm
def test_loads_and_unloads_of_vllm():
    check(reloads("tandem_vllm", times=2))


@pytest.mark.parametrize("model", ["tandem", pytest.param("tandem_vllm", marks=pytest.mark.vllm)])
def test_what_clients_leave_is_dropped_in_every_state(model):
    found = cancels(model, 1, lambda: None)
    assert list(found) == cells()
    for (_, state), [times] in found.items():
        assert 0 < times.noticed <= times.freed
        assert (times.shown is None) == (state == "prefilling")
