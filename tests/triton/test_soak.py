"""Short versions of `make soak`: all adds up, and memory is flat."""

import pytest

from tools.soak.cancels import cancels, cells
from tools.soak.runs import Result, overload, reloads, soak

pytestmark = pytest.mark.timeout(900)

REQUESTS = 2300  # of which more than 1,000 are left by their clients


def check(result: Result) -> None:
    assert not result.troubles, "\n".join(result.troubles)


def test_mixed_traffic_with_a_thousand_cancels():
    result = soak("tandem", REQUESTS, minutes=12, concurrency=24)
    check(result)
    assert sum(result.clients.values()) == REQUESTS
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


def test_ten_times_what_can_be_answered():
    result = overload("tandem", factor=10, seconds=8)
    check(result)
    assert result.clients["queue_full"] > 0


def test_loads_and_unloads():
    check(reloads("tandem", times=4))


def test_loads_and_unloads_of_ranks():
    check(reloads("tandem_tp", times=3))


@pytest.mark.vllm
def test_loads_and_unloads_of_vllm():
    check(reloads("tandem_vllm", times=2))


def test_what_clients_leave_is_dropped_in_every_state():
    found = cancels("tandem", 1, lambda: None)
    assert list(found) == cells()
    for (_, state), [times] in found.items():
        assert 0 < times.noticed <= times.freed
        assert (times.shown is None) == (state == "prefilling")
