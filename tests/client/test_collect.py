"""Chunks add up, and are timed by the clock of the client."""

from tandem_client import Chunk, SpeculationStats, Timing
from tandem_client.collect import Collector


def collect(times, chunks):
    clock = iter(times)
    collector = Collector(lambda: next(clock))
    for chunk in chunks:
        collector.add(chunk)
    return collector.completion()


def test_chunks_add_up_to_a_completion():
    stats = SpeculationStats(1.0, 2, 2, 1)
    completion = collect(
        [10.0, 10.5, 12.0],
        [
            Chunk("a", (1,), (False,), 1, num_input_tokens=4),
            Chunk("bc", (2, 3), (True, False), 2, finish_reason="length", stats=stats),
        ],
    )
    assert completion.text == "abc"
    assert completion.token_ids == (1, 2, 3)
    assert completion.drafted == (False, True, False)
    assert (completion.num_input_tokens, completion.num_tokens) == (4, 3)
    assert completion.finish_reason == "length"
    assert completion.stats == stats
    assert completion.timing == Timing(0.5, 2.0, 1.5)


def test_a_chunk_without_tokens_is_not_the_first_token():
    completion = collect([0.0, 1.0, 3.0], [Chunk(), Chunk("a", num_tokens=1)])
    assert completion.timing.time_to_first_token == 3.0


def test_nothing_arrived():
    completion = collect([0.0], [])
    assert completion.finish_reason is None
    assert completion.timing == Timing(0.0, 0.0, 0.0)
