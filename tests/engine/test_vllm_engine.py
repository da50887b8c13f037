"""What the engine vllm does without vLLM."""

import queue

from tandem.output import Streams
from tandem.vllm.engine import VllmEngine


def test_the_loss_of_vllm_is_told_and_ends_the_wait_for_its_next_step():
    engine, told = object.__new__(VllmEngine), []
    engine.streams, engine.steps = Streams(), 0
    engine._arrived = queue.SimpleQueue()
    engine._lost = ""
    engine.watch(told.append)
    engine._lose(RuntimeError("a rank has ended. More words."))
    assert engine._arrived.qsize() == 1  # or the step would wait for ever
    assert engine.step() == []
    assert told == ["vLLM's engine has ended (RuntimeError: a rank has ended)"]
