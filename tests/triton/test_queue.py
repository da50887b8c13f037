"""Requests that wait while another one has the only place."""

import threading
import time

import pytest

from tandem.metrics import FAILED, WAITING
from tests.triton.conftest import PROMPT
from tests.triton.protocol import WAIT, Refused, responses, sampling, stream
from tests.triton.scrape import waited

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def occupied(control, small, changed):
    """Loads the model anew with these parameters, and gives an answer that comes meanwhile, as
    slowly as it can: with it the one place is taken."""
    answers = []

    def load(**values):
        control.load_model("tandem", config=changed(**values))
        parameters = sampling(max_tokens=1900)
        asked = {"text_input": PROMPT, "stream": True, "sampling_parameters": parameters}
        answers.append(responses(small.grpc, asked | {"num_draft_tokens": 0}))
        assert next(answers[0]).text
        return answers[0]

    yield load
    answers[0].close()
    control.load_model("tandem", config=changed())


def test_who_waits_longer_than_the_queues_time_is_refused(occupied, small):
    occupied(queue_timeout="1")
    with pytest.raises(Refused, match="queue_timeout"):
        stream(small.grpc, PROMPT, max_tokens=2)
    failed = waited(small, lambda found: found[FAILED, ("reason", "timeout")] == 1)
    assert failed[FAILED, ("reason", "timeout")] == 1


def test_the_more_important_are_answered_first(occupied, small):
    running, ended = occupied(max_queue_size="8"), []

    def ask_as(priority):
        stream(small.grpc, PROMPT, max_tokens=200, priority=priority)
        ended.append(priority)

    waiting = [threading.Thread(target=ask_as, args=[priority]) for priority in (1, 0, -1)]
    for client in waiting:
        client.start()
        time.sleep(0.1)
    assert waited(small, lambda found: found[WAITING,] == 3)[WAITING,] == 3
    running.close()
    for client in waiting:
        client.join(WAIT)
    assert ended == [-1, 0, 1]
