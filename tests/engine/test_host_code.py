"""Which functions run between passes is seen, and the kernels are told."""

import sys
import threading

import pytest

from tandem.cpu import host_code
from tandem.cpu.host_code import FIRST, KNOWN, LONG, OFTEN, RECENT, SELDOM, HostCode
from tandem.request import SamplingParams


class Kernels:
    def __init__(self):
        self.told = []

    def want(self, stretches):
        self.told.append(stretches)


def often():
    return sum(map(one_more, range(3)))


def one_more(number):
    return number + 1


def seldom():
    return {}


@pytest.fixture
def kernels():
    yield Kernels()
    assert sys.getprofile() is None


def watch(code, kernels, *functions):
    """One whole watch."""
    step = code.due
    code.turn(step, kernels)
    for function in functions:
        function()
    assert code.due == step + LONG
    code.turn(step + LONG, kernels)


def addresses(told):
    return {at for at, _ in told}


def test_what_ran_is_told_with_all_that_running_it_reads(kernels):
    code = HostCode()
    assert code.due == FIRST
    watch(code, kernels, often)
    (told,) = kernels.told
    for function in (often, one_more):
        for part in (function.__code__, function.__code__.co_consts, function.__code__.co_names):
            assert (id(part), part.__sizeof__()) in told
    assert id(seldom.__code__) not in addresses(told)


def test_what_other_engines_with_the_same_kernels_told_is_told_anew(kernels):
    code, other = HostCode(), HostCode()
    watch(code, kernels, often)
    watch(other, kernels, seldom)
    watch(code, kernels, often)
    assert id(often.__code__) in addresses(kernels.told[-1])
    assert len(kernels.told) == 3


def test_what_runs_no_more_is_forgotten(kernels):
    code = HostCode()
    for _ in range(RECENT // 2):
        watch(code, kernels, often, seldom)
    for _ in range(RECENT // 2):
        assert id(seldom.__code__) in addresses(kernels.told[-1])
        watch(code, kernels, often)
    watch(code, kernels, often)
    assert id(seldom.__code__) not in addresses(kernels.told[-1])
    assert id(often.__code__) in addresses(kernels.told[-1])
    for _ in range(RECENT):
        watch(code, kernels, often)
    assert id(seldom.__code__) not in code._seen


def test_what_runs_seldom_is_not_fetched(kernels):
    code = HostCode()
    for turn in range(4 * RECENT):
        watch(code, kernels, often, *[seldom] * (turn % RECENT == 0))
        if turn >= RECENT:
            assert id(seldom.__code__) not in addresses(kernels.told[-1])
            assert id(often.__code__) in addresses(kernels.told[-1])
    for turn in range(RECENT):
        watch(code, kernels, often, *[seldom] * (turn % 2))
    assert id(seldom.__code__) in addresses(kernels.told[-1])


def test_watches_become_seldom(kernels):
    code, ends = HostCode(), []
    for _ in range(KNOWN + 2):
        begin = code.due
        watch(code, kernels, often)
        ends.append(code.due - begin - LONG)
    assert ends == [OFTEN] * (KNOWN - 1) + [SELDOM] * 3


def test_what_there_is_no_room_for_is_left_out_what_was_seen_longest_ago_first(
    kernels, monkeypatch
):
    code = HostCode()
    watch(code, kernels, often)
    enough = sum(size for _, size in kernels.told[0])
    monkeypatch.setattr(host_code, "MOST_BYTES", enough - 1)
    code = HostCode()
    watch(code, kernels, seldom)
    watch(code, kernels, often)
    assert id(often.__code__) in addresses(kernels.told[-1])
    assert id(seldom.__code__) not in addresses(kernels.told[-1])


def test_another_profiler_is_left_alone(kernels):
    code, seen = HostCode(), []

    def other(frame, event, _):
        seen.append(event)

    sys.setprofile(other)
    try:
        code.turn(code.due, kernels)
        assert sys.getprofile() is other
        assert code.due == FIRST + OFTEN
    finally:
        sys.setprofile(None)
    code.turn(code.due, kernels)
    sys.setprofile(other)  # while it watches
    try:
        code.turn(code.due, kernels)
        assert sys.getprofile() is other
    finally:
        sys.setprofile(None)


def test_a_watch_sees_no_more_than_enough(kernels, monkeypatch):
    """Whoever steps may do much else between two steps."""
    monkeypatch.setattr(host_code, "MOST_EVENTS", 10)
    code = HostCode()
    code.turn(code.due, kernels)
    for _ in range(10):
        often()
    assert sys.getprofile() is None
    seldom()
    code.turn(code.due, kernels)
    (told,) = kernels.told
    assert id(often.__code__) in addresses(told) and id(seldom.__code__) not in addresses(told)


def test_a_watch_that_ends_in_another_thread_goes_no_further(kernels):
    code = HostCode()
    code.turn(code.due, kernels)
    thread = threading.Thread(target=code.turn, args=(code.due, kernels))
    thread.start()
    thread.join()
    often()
    assert sys.getprofile() is None


def test_an_engine_that_has_ended_watches_nothing(engine):
    one, params = engine(), SamplingParams(temperature=0, max_tokens=FIRST + LONG // 2)
    one.generate([[1, 2, 3]], params)
    assert sys.getprofile() is not None
    one.shutdown()
    assert sys.getprofile() is None


def test_an_engine_writes_the_same_while_its_code_is_fetched(engine):
    """Even where nothing is any more at the addresses."""
    one, params = engine(), SamplingParams(temperature=0, max_tokens=8)
    plain = one.generate([[1, 2, 3]], params)[0].token_ids
    one.target.by_kernels.want([(8, 1 << 12), (0, 64), (1 << 62, 128)])
    assert one.generate([[1, 2, 3]], params)[0].token_ids == plain


def test_an_engine_tells_what_runs_between_its_passes(engine, monkeypatch):
    one, told = engine(), []
    monkeypatch.setattr(one.target.by_kernels, "want", told.append)
    params = SamplingParams(temperature=0, max_tokens=FIRST + LONG + 8)
    one.generate([[1, 2, 3]], params)
    found = addresses(told[0])
    for method in (one._commit, one.scheduler.schedule, one.target.forward):
        assert id(method.__func__.__code__) in found
