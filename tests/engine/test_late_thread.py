"""A pass that its first thread comes to late, as it does something else while others begin."""

import random
import time

import pytest
import torch

from tandem.attention.plan import Query
from tandem.models.config import read_model_config
from tandem.runners.model_runner import ModelRunner
from tests.engine.checkpoints import make_checkpoint

RNG = random.Random(9)
TEXT = RNG.choices(range(96), k=48)
BLOCKS = [5, 2, 7, 0]
DRAFT = Query(BLOCKS, 48, 7)
PROMPT = Query(BLOCKS, 0, 48)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def runner(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("late")
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6}
    make_checkpoint(folder, "llama", seed=3, **sizes)
    made = ModelRunner(folder, read_model_config(folder), request.param, torch.device("cpu"))
    made.allocate(8, 16)
    return made


def busy(seconds):
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        pass


def passes(runner, meanwhile=None):
    """Logits and hidden states of a prompt, whose last row alone is wanted, and of a draft."""
    forward = runner.by_kernels.forward
    prompt = forward(TEXT, [PROMPT], [47], None, meanwhile=meanwhile).logits.clone()
    passed = forward(TEXT[:7], [DRAFT], None, (0, 3, 6), meanwhile=meanwhile)
    return prompt, passed.logits.clone(), passed.features, passed.best


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_it_makes_the_same_bits_however_late_it_comes(runner, threads):
    runner.by_kernels._model.threads = threads
    expected, calls = passes(runner), 0

    def meanwhile():
        nonlocal calls
        calls += 1
        busy(RNG.choice([0.0, 0.0, 1e-5, 5e-5, 2e-4, 5e-3]))

    for _ in range(150):
        for found, due in zip(passes(runner, meanwhile), expected, strict=True):
            assert found == due if isinstance(due, list) else torch.equal(found, due)
    assert calls == 2 * 150


def test_what_it_raises_is_raised_behind_the_pass(runner):
    runner.by_kernels._model.threads = 2
    expected = passes(runner)

    def meanwhile():
        raise LookupError("some")

    with pytest.raises(LookupError, match="some"):
        passes(runner, meanwhile)
    assert torch.equal(passes(runner)[0], expected[0])


def test_others_begin_without_it(runner):
    """With much to do, two threads take no longer than it does something else, and then half of the
    pass; alone the first one would be waited for."""
    runner.by_kernels._model.threads = 2
    begun = []

    def meanwhile():
        before = runner.cache.data.clone()
        busy(0.2)
        begun.append(not torch.equal(runner.cache.data, before))

    runner.cache.data.zero_()
    passes(runner, meanwhile)
    assert any(begun)
