"""How much is still computed for a client that has left, in steps: none.

The engine's process without Triton in front: its loop, and what comes to it while a step is under
way.
"""

import queue

import pytest

from tandem.config import EngineConfig
from tandem.deadlines import Deadlines
from tandem.engine import NativeEngine
from tandem.messages import Abort, Outputs
from tandem.request import SamplingParams
from tandem.service_worker import _run
from tests.triton.repository import MODEL_REPOSITORY

PAIR = MODEL_REPOSITORY / "tandem" / "1"
LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
CHUNK = 16


class Seen(Exception):
    """There is no more to see: ends the loop."""


class Sender(list):
    """The way out."""

    def send(self, message):
        self.append(message)

    def reasons(self, name):
        outputs = [
            one for message in self if isinstance(message, Outputs) for one in message.outputs
        ]
        return [one.finish_reason for one in outputs if one.request_id == name]


@pytest.fixture(scope="module", params=[1, 2], ids="ranks={}".format)
def shared_engine(request):
    pair = {"model": PAIR / "target", "draft_model": PAIR / "draft", "kv_cache_memory": "16MiB"}
    sizes = {"max_model_len": 512, "max_num_seqs": 1, "max_num_batched_tokens": CHUNK}
    ranks = {"tensor_parallel_size": request.param}
    one = NativeEngine(EngineConfig(**pair | sizes | ranks, enable_prefix_caching=False))
    yield one
    one.shutdown()


@pytest.fixture
def engine(shared_engine):
    yield shared_engine
    for name in list(shared_engine.streams):
        shared_engine.abort(name)


@pytest.mark.parametrize(("state", "steps"), [("queued", 3), ("prefilling", 3), ("decoding", 12)])
def test_both_caches_are_free_before_the_next_step(engine, monkeypatch, state, steps):
    """The abort comes within a step; the next one begins without the request."""
    inbox, sender, step, counted = queue.SimpleQueue(), Sender(), engine.step, []

    def submit(name, prompt):
        return engine.prepare(prompt, LONG, name)

    if state == "queued":
        inbox.put(submit("running", [5] * CHUNK))
    inbox.put(submit("leaver", [7] * CHUNK * (6 if state == "prefilling" else 1)))

    def watched():
        counted.append(engine.stats())
        if len(counted) > steps:
            raise Seen
        outputs = step()
        if len(counted) == steps:
            assert [one.id for one in of_state(engine, state)] == ["leaver"]
            inbox.put(Abort("leaver"))
            inbox.put(submit("next", [9] * CHUNK))
        return outputs

    monkeypatch.setattr(engine, "step", watched)
    with pytest.raises(Seen):
        _run(engine, sender, inbox, Deadlines(None))
    *_, before, after = counted
    assert sender.reasons("leaver")[-1] == "abort"
    assert "leaver" not in engine.streams
    assert (after.running, after.waiting) == (state == "queued", 1)
    if state != "queued":
        assert before.blocks_used > after.blocks_used == 0


def of_state(engine, state):
    """Requests that are queued, prefilling or decoding."""
    running, waiting = engine.scheduler.running, engine.scheduler.waiting
    decoding = [one for one in running if one.decoding]
    reading = [one for one in running if not one.decoding]
    return {"queued": waiting, "prefilling": reading, "decoding": decoding}[state]
