"""What the kernels are told of a pass: numbers in any sequence, held no longer than it takes."""

import gc
import sys
import threading
import time
from array import array

import numpy as np
import pytest
import torch

from tandem.attention.plan import Query
from tandem.cpu import library
from tandem.cpu.library import load_kernels
from tandem.models.config import read_model_config
from tandem.runners.model_runner import ModelRunner
from tandem.verification.judging import ChainDraw, Draws, Gate
from tests.engine.checkpoints import make_checkpoint

TEXT = [5, 80, 3, 41, 17, 66]
BLOCKS = [1, 0]
WRONG = {
    "a word": (["x"], Query(BLOCKS, 0, 1), [0]),
    "nothing": ([None], Query(BLOCKS, 0, 1), [0]),
    "half a token": ([1.5], Query(BLOCKS, 0, 1), [0]),
    "no sequence": (7, Query(BLOCKS, 0, 1), [0]),
    "too large": ([1 << 70], Query(BLOCKS, 0, 1), [0]),
    "too large a block": ([1], Query([1 << 32], 0, 1), [0]),
    "too large a row": ([1], Query(BLOCKS, 0, 1), [1 << 40]),
    "a block": ([1], Query(["x"], 0, 1), [0]),
    "blocks": ([1], Query(None, 0, 1), [0]),
    "a place": ([1], Query(BLOCKS, "x", 1), [0]),
    "a parent": ([1], Query(BLOCKS, 0, 1, ["x"]), [0]),
    "a row": ([1], Query(BLOCKS, 0, 1), ["x"]),
    "no record": ([1], 7, [0]),
}


@pytest.fixture
def runner(tmp_path):
    make_checkpoint(tmp_path, "llama", seed=3)
    made = ModelRunner(tmp_path, read_model_config(tmp_path), torch.float32, torch.device("cpu"))
    made.allocate(4, 16)
    return made


def logits_of(runner, tokens, blocks, rows):
    query = Query(blocks, 0, len(TEXT))
    return runner.by_kernels.forward(tokens, [query], rows, None).logits.clone()


def drawn(**how):
    return ChainDraw(None, 0, 3, (), -1, **how)


def drawn_as(chain, gate=None):
    return Draws([chain], 1, None, gate)


@pytest.mark.parametrize(
    ("tokens", "blocks", "rows"),
    [
        (tuple(TEXT), range(1, -1, -1), range(6)),
        (array("q", TEXT), (1, 0, 9, 9), array("i", range(6))),
        (np.array(TEXT), np.array(BLOCKS), np.arange(6)),
        (torch.tensor(TEXT), BLOCKS, None),
    ],
    ids=["tuples", "arrays", "numpy", "torch"],
)
def test_numbers_come_in_any_sequence(runner, tokens, blocks, rows):
    expected = logits_of(runner, TEXT, BLOCKS, [0, 1, 2, 3, 4, 5])
    assert torch.equal(logits_of(runner, tokens, blocks, rows), expected)


@pytest.mark.parametrize("wrong", list(WRONG))
def test_what_is_no_number_is_an_error_and_the_next_pass_is_right(runner, wrong):
    expected = logits_of(runner, TEXT, BLOCKS, [5])
    tokens, query, rows = WRONG[wrong]
    with pytest.raises((TypeError, OverflowError, SystemError)):
        runner.by_kernels.forward(tokens, [query], rows, None)
    assert torch.equal(logits_of(runner, TEXT, BLOCKS, [5]), expected)


@pytest.mark.parametrize("wrong", [{"length": "x"}, {"keys": ["x"]}, {"biases": [("x", 1.0)]}])
def test_what_is_no_number_of_a_chain_is_an_error(runner, wrong):
    chain = drawn()._replace(**wrong)
    with pytest.raises((TypeError, SystemError)):
        runner.by_kernels.chains(torch.zeros(1, 96), [Query(BLOCKS, 6, 2)], drawn_as(chain), 96)


@pytest.mark.parametrize(("chains", "fed"), [(1, 0), (1, 2), (2, 1), (0, 0)])
def test_each_chain_has_a_query(runner, chains, fed):
    draws = Draws([drawn()] * chains, 1, None)
    with pytest.raises(ValueError, match="a query for each chain"):
        runner.by_kernels.chains(torch.zeros(2, 96), [Query(BLOCKS, 6, 2)] * fed, draws, 96)
    with pytest.raises(TypeError):
        runner.by_kernels.chains(torch.zeros(2, 96), 7, draws, 96)


def test_nothing_told_is_kept_and_nothing_made_is_lost(runner):
    token, block = int("80000") // 1000, int("1")
    words = [[5, token, 3], [block, 0], [0, 1, 2]]
    gate = Gate(1e-9, array("f", [1.0] * 48))
    chain = drawn(biases=((7, 0.5),), limits=(0.5, 0.0, 0, 1.0))
    chain = chain._replace(noise=1, keys=[1 << 63, 2, 3])
    told = drawn_as(chain, gate)
    before = [sys.getrefcount(one) for one in (*words, chain, chain.keys, None)]

    def pass_and_chain():
        query = Query(words[1], 0, 3)
        best = runner.by_kernels.forward(words[0], [query], words[2], None).best
        logits = torch.zeros(1, 96)
        return best, *runner.by_kernels.chains(logits, [Query(words[1], 3, 2)], told, 96)

    best, tokens, sure = pass_and_chain()
    ours = [0]
    made = best, tokens, sure, tokens[0], sure[0], ours
    assert len({sys.getrefcount(one) for one in made}) == 1  # nobody else has them
    assert len(best) == len(tokens[0]) == len(sure[0]) == 3
    for _ in range(500):
        pass_and_chain()
    after = [sys.getrefcount(one) for one in (*words, chain, chain.keys, None)]
    assert after[:-1] == before[:-1]
    assert abs(after[-1] - before[-1]) < 100  # None's, which others use
    gc.collect()
    lists = [one for one in gc.get_objects() if type(one) is list and len(one) == len(best)]
    assert sum(one == best for one in lists) < 50  # of 500


def test_other_threads_go_on_during_a_pass(runner):
    rounds, over = [0], threading.Event()

    def count():
        while not over.is_set():
            rounds[0] += 1
            time.sleep(1e-5)

    other = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    other.start()
    try:
        sys.setswitchinterval(1000)  # it goes on only where the lock is given up
        tokens = TEXT * 10
        found = 0
        for _ in range(200):
            before = rounds[0]
            runner.by_kernels.forward(tokens, [Query([0, 1, 2, 3], 0, 60)], [59], None)
            found += rounds[0] > before
        assert found > 10
    finally:
        sys.setswitchinterval(interval)
        over.set()
        other.join()


@pytest.mark.usefixtures("anew")
def test_without_pythons_functions_it_is_not_loaded(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "kernels.cpp"
    source.write_text('extern "C" { void PyNothing(); void tandem_space() { PyNothing(); } }')
    monkeypatch.setattr(library, "SOURCE", source)
    assert load_kernels() is None
    assert "PyNothing" in caplog.text
