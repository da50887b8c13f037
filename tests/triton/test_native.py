"""What is the same for both engines, and takes several loads to see: tried with ours alone."""

import threading
import time

import httpx2
import pytest

from tandem.metrics import FAILED, WAITING
from tests.triton.conftest import PROMPT
from tests.triton.protocol import WAIT, Refused, mean_draft, responses, sampling, stream
from tests.triton.repository import EAGLE3, with_parameters
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
    late = (FAILED, ("reason", "timeout"))  # which is not shown before the first one
    assert waited(small, lambda found: found.get(late) == 1)[late] == 1


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


def test_a_reload_swaps_what_its_file_says(control, small, small_server):
    """As the operator's documents have it: another file by a rename, and one call over HTTP."""
    file = small_server.options.model_repository / "tandem" / "config.pbtxt"
    as_it_is = file.read_text()
    try:
        for text, drafts in ((with_parameters(as_it_is, EAGLE3), 1), (as_it_is, None)):
            other = file.with_name("other")
            other.write_text(text)
            other.rename(file)
            url = f"http://{small.http}/v2/repository/models/tandem/load"
            assert httpx2.post(url, timeout=5 * WAIT).status_code == 200
            mean = mean_draft(stream(small.grpc, PROMPT, max_tokens=100))
            assert mean == drafts if drafts else mean > 1
    finally:
        file.write_text(as_it_is)
