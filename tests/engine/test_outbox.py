"""The outbox: what is sent at once, what is held and merged."""

import pytest

from tandem import outbox
from tandem.outbox import HOLD_AN_ANSWER_S, LONGEST_HOLD_S, Outbox
from tandem.request import RequestOutput


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(outbox, "time", clock)
    return clock


@pytest.fixture
def sent():
    return []


@pytest.fixture
def box(sent, clock):
    return Outbox(lambda message: sent.append(message.outputs), shares_processor=True)


def out(name, *tokens, reason=None):
    return RequestOutput(name, token_ids=list(tokens), finish_reason=reason)


def test_a_first_answer_goes_at_once(box, sent):
    box.put([out("a", 1)])
    box.put([out("a", 2), out("b", 3)])
    assert [[o.request_id for o in message] for message in sent] == [["a"], ["a", "b"]]


def test_a_last_answer_takes_the_others_with_it(box, sent):
    box.put([out("a", 1), out("b", 2)])
    box.put([out("a", 3), out("b", 4)])
    box.put([out("a", 5, reason="stop"), out("b", 6)])
    assert [o.token_ids for o in sent[1]] == [[3, 5], [4, 6]]
    box.put([out("a", 1)])  # a new request under an old name is new
    assert len(sent) == 3


@pytest.mark.parametrize("count", [1, 2, 100])
def test_what_comes_between_is_held_the_longer_the_more_there_is(box, sent, clock, count):
    names = [str(i) for i in range(count)]
    box.put([out(name, 0) for name in names])
    hold = min(count * HOLD_AN_ANSWER_S, LONGEST_HOLD_S)
    clock.now += hold - 0.001
    box.put([out(name, 1) for name in names])
    box.put([])
    assert len(sent) == 1
    clock.now += 0.002
    box.put([out(name, 2) for name in names])
    assert [o.token_ids for o in sent[1]] == [[1, 2]] * count


def test_what_is_held_leaves_though_a_step_brings_nothing(box, sent, clock):
    box.put([out("a", 1)])
    box.put([out("a", 2)])
    clock.now += 1.0
    box.put([])
    assert sent[1][0].token_ids == [2]
    box.put([])
    assert len(sent) == 2


def test_nothing_is_held_where_the_engine_computes_elsewhere(sent, clock):
    box = Outbox(lambda message: sent.append(message.outputs), shares_processor=False)
    for token in range(3):
        box.put([out("a", token)])
    assert len(sent) == 3
