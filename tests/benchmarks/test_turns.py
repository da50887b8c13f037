"""What benchmarks measure engines with: it goes with the engine as it is."""

import random

import pytest

from benchmarks import loads
from benchmarks.methods import Meter
from tandem import SamplingParams

PROMPTS = [random.Random(place).choices(range(9, 4000), k=12) for place in range(3)]


@pytest.fixture(scope="module")
def pair():
    """Engines without a method, and with a draft of up to two tokens."""
    target, draft = (loads.MODELS / name for name in ("target", "draft"))
    plain = loads.engine_of(target)
    drafting = loads.engine_of(target, draft_model=draft, num_speculative_tokens=2)
    with plain, drafting:
        loads._share_weights(plain, drafting)
        yield plain, drafting


def test_engines_over_the_same_weights_keep_their_own_texts(pair):
    assert pair[0].target.model is pair[1].target.model
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    alone = [output.token_ids for output in pair[0].generate(PROMPTS, params)]
    turning = [loads.Load(loads.Clocked(engine, loads.Clock()), PROMPTS, 2, 8) for engine in pair]
    runs = [[load.run(0.05) for load in turning] for _ in range(3)]
    assert all(run.tokens > 0 and run.seconds >= 0.05 for turn in runs for run in turn)
    for load in turning:
        load.end()
    assert pair[0].idle and pair[1].idle
    for engine in pair:
        assert [output.token_ids for output in engine.generate(PROMPTS, params)] == alone


def test_the_clock_stands_still_while_others_have_their_turns(monkeypatch):
    now = [5.0]
    monkeypatch.setattr(loads.time, "perf_counter", lambda: now[0])
    clock, seen = loads.Clock(), []
    for pause in (100.0, 50.0):
        now[0] += pause
        with clock.going():
            seen.append(clock())
            now[0] += 2.0
            seen.append(clock())
    assert [later - seen[0] for later in seen] == [0.0, 2.0, 2.0, 4.0]


def test_drafting_and_the_targets_passes_are_timed(pair):
    engine = pair[1]
    meter = Meter(engine, engine.target)
    engine.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    assert meter.passes > 3
    assert meter.share > 0
