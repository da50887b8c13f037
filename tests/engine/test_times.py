"""What takes how long by its size: profiled, then learnt."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tandem.config import EngineConfig
from tandem.drafting import times
from tandem.drafting.times import Times, profile
from tandem.first_passes import FirstPasses
from tandem.models.decoder import Passed


def profiled(monkeypatch, seconds, most, text=64, warm=False):
    """By a clock that passes alone move on, and these passes: requests, rows of each, text."""
    now, passes = [0.0], []
    monkeypatch.setattr(times, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def run(requests, each, behind):
        passes.append((requests, each, behind))
        now[0] += seconds(requests, each, behind, len(passes))

    return profile(run, most, text, warm), passes


def test_a_profile_takes_the_least_of_some_tries_and_stops_at_the_most(monkeypatch):
    found, passes = profiled(monkeypatch, lambda many, _, __, tries: 1e-3 * (many + tries % 3), 20)
    assert found.rows == {rows: pytest.approx(1e-3 * rows) for rows in (1, 2, 4, 8, 12, 14, 16, 17)}
    by_rows = [many for many, each, behind in passes if each == 1 and not behind]
    assert by_rows[:21] == sorted(by_rows[:21], reverse=True)  # the first use of memory is no
    assert max(many * each for many, each, _ in passes) <= 20  # pass's time


def test_long_passes_are_profiled_but_once(monkeypatch):
    _, passes = profiled(monkeypatch, lambda *_: 1.0, 4, text=1)
    assert passes == [(4, 1, 0), (2, 1, 0), (1, 1, 0)]


def test_a_first_pass_that_compiles_is_not_timed(monkeypatch):
    met = set()

    def seconds(many, each, behind, _):
        known = (many, each, behind) in met
        met.add((many, each, behind))
        return 1e-3 * many if known else 2.0

    found, _ = profiled(monkeypatch, seconds, 20, warm=True)
    assert found.rows == {rows: pytest.approx(1e-3 * rows) for rows in (1, 2, 4, 8, 12, 14, 16, 17)}
    assert found.texts == pytest.approx((0, 0))


@pytest.mark.parametrize(("most", "text"), [(512, 256), (64, 64), (20, 64), (2, 3), (40, 2000)])
def test_what_texts_take_is_profiled_by_tokens_and_by_the_rows_that_see_them(
    monkeypatch, most, text
):
    def seconds(requests, each, behind, _):
        return 0.01 + requests * behind * (2e-6 + 1e-6 * each)

    found, passes = profiled(monkeypatch, seconds, most, text)
    assert found.texts == pytest.approx((2e-6, 1e-6))
    assert all(each + behind <= text and many * each <= most for many, each, behind in passes)
    assert found.texts.of(4, 400, 8) == pytest.approx(400 * (2e-6 + 2 * 1e-6))


def test_what_cannot_be_profiled_of_texts_is_taken_for_nothing(monkeypatch):
    for most, text in ((1, 64), (64, 1), (64, 8)):
        assert profiled(monkeypatch, lambda *_: 1e-3, most, text)[0].texts == (0, 0)


def test_fewer_rows_are_expected_to_take_no_longer_than_more_did():
    times = Times({1: 1.0, 64: 2.0})
    times.observe(1, 1.8)
    slow = times.of(1)
    for _ in range(20):
        times.observe(4, 0.5)
    assert times.of(4) < 0.6 < slow
    assert times.of(1) <= times.of(4)  # although nobody has seen it since
    for _ in range(20):
        times.observe(4, 1.9 * times.of(4))
    assert 2.3 < times.of(4) <= times.of(8) <= times.of(64)
    assert times.upto(64) == sorted(times.upto(64))


def test_times_lie_on_a_line_between_sizes_and_grow_beyond():
    times = Times({1: 1.0, 9: 2.0})
    assert times.of(5) == pytest.approx(1.5)
    assert times.of(100) > times.of(20) > 2.0


@pytest.mark.parametrize("size", [1, 2, 5, 17, 18, 20, 24, 40, 3000, 9000])
def test_one_size_is_as_many_are(size):
    times = Times({1: 1.0, 8: 3.0, 64: 4.0})
    times.observe(3, 5.0)
    assert times.of(size) == pytest.approx(times.upto(size)[size])


def test_times_follow_what_is_observed_most_where_it_was():
    times = Times({1: 1.0, 64: 1.0})
    for _ in range(40):
        times.observe(8, 1.9)
    assert times.of(8) == pytest.approx(1.9, rel=0.05)
    assert 1.0 < times.of(1) < times.of(4) < times.of(8)


def test_rounds_that_read_a_prompt_too_count_for_little():
    times = Times({1: 1.0, 64: 2.0})
    for _ in range(20):
        times.observe(8, 10.0)
    assert times.of(8) < 1.6


def test_more_rows_are_never_quicker():
    times = Times({1: 1.0, 64: 2.0})
    for _ in range(100):
        times.observe(8, 2.0)
    assert (np.diff(times.upto(99)) >= 0).all()


def test_a_size_that_was_not_seen_for_long_is_learnt_sooner():
    often, seldom = Times({1: 1.0, 64: 1.0}), Times({1: 1.0, 64: 1.0})
    for _ in range(30):
        often.observe(1, 1.0)
        often.observe(64, 1.0)
        seldom.observe(1, 1.0)
    often.observe(64, 1.5)
    seldom.observe(64, 1.5)
    assert often.of(64) < 1.15 < 1.2 < seldom.of(64)


class Target:
    """Keeps what passes are over."""

    def __init__(self):
        self.passes = []

    def forward(self, tokens, queries, rows, taps):
        assert (rows, taps) == (None, (1, 2))
        assert len(tokens) == sum(query.length for query in queries)
        self.passes.append(queries)
        return Passed(torch.zeros(1, 1), None)


class DraftRunner:
    """Keeps how many tokens it has read."""

    def __init__(self, max_position=512):
        self.config = SimpleNamespace(max_position=max_position)
        self.read = []

    def forward(self, tokens, queries, rows):
        assert rows == [len(tokens) - 1]
        assert queries[0].end <= 16 * len(queries[0].blocks)
        self.read.append(len(tokens))


def test_a_gpu_meets_prompts_before_requests_do(target):
    config = EngineConfig(model=target, speculative_method="ngram", max_num_batched_tokens=300)
    draft, tried = DraftRunner(), Target()
    FirstPasses(config, tried, (1, 2), 30, 512, draft=draft).warm_up()
    assert draft.read == [16, 64, 256]
    assert {16, 64, 256} <= {len(queries) * queries[0].length for queries in tried.passes}
    FirstPasses(config, tried, (1, 2), 5, 512, draft=draft).warm_up()
    assert draft.read[3:] == [16, 64]  # of 16 tokens a block
    short = DraftRunner(max_position=100)
    FirstPasses(config, tried, (1, 2), 30, 512, draft=short).warm_up()
    assert short.read == [16, 64]


def test_a_gpu_meets_steps_that_decode_before_requests_do(target):
    values = {"speculative_method": "ngram", "num_speculative_tokens": 4, "max_num_seqs": 32}
    config = EngineConfig(model=target, **values)
    FirstPasses(config, tried := Target(), (1, 2), num_blocks=30, max_model_len=512).warm_up()
    shapes = {(len(queries), queries[0].length) for queries in tried.passes}
    assert {(1, 1), (1, 5), (24, 1), (24, 5)} <= shapes
    assert max(requests for requests, _ in shapes) == 24  # of 32 each has no block
    assert all(one.start == 0 for queries in tried.passes for one in queries)


@pytest.mark.parametrize(("num_blocks", "max_model_len"), [(2000, 512), (64, 512), (2000, 20)])
def test_passes_are_profiled_in_blocks_that_nobody_shares(target, num_blocks, max_model_len):
    config = EngineConfig(model=target, speculative_method="ngram", num_speculative_tokens=4)
    FirstPasses(config, tried := Target(), (1, 2), num_blocks, max_model_len).times()
    passes = tried.passes
    for queries in passes:
        blocks = [block for query in queries for block in query.blocks]
        assert len(set(blocks)) == len(blocks)
        assert max(blocks) < num_blocks
        assert all(query.end <= len(query.blocks) * config.block_size for query in queries)
        assert all(query.end <= max_model_len for query in queries)
    assert any(query.start and query.length > 1 for queries in passes for query in queries)
    assert any(not query.start and len(queries) >= 64 for queries in passes for query in queries)
