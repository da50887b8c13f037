"""Where there is no memory for a graph, a step goes without one; and there are only so many."""

from types import SimpleNamespace

import pytest
import torch

from tandem.gpu import graphs, rounds
from tandem.gpu.round import Bucket


@pytest.fixture
def failing(monkeypatch):
    """Rounds whose memory is asked for in vain, with this error."""

    def make(error):
        def none(*_):
            raise error

        monkeypatch.setattr(rounds, "Round", none)
        target = SimpleNamespace(device=torch.device("cpu"))
        return rounds.GraphedRounds(target, target, None, None, clock=lambda: None)

    return make


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_it_is_said_and_not_tried_again(failing, error, caplog):
    one = failing(error)
    assert [one._run(Bucket(1, 2), []) for _ in range(2)] == [None, None]
    assert caplog.text.count("no memory for a CUDA graph") == 1


def test_another_error_is_none_of_memory(failing):
    with pytest.raises(RuntimeError, match="illegal"):
        failing(RuntimeError("CUDA error: an illegal memory access"))._run(Bucket(1, 2), [])


@pytest.mark.parametrize(("free", "captures"), [(graphs.LEFT, False), (graphs.LEFT + 1, True)])
def test_some_is_left_for_what_goes_without_one(free, captures, monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(graphs.CudaGraphs, "_free", lambda self: free)
    monkeypatch.setattr(graphs.CudaGraphs, "_captured", lambda self, run, now: run)
    capture = object.__new__(graphs.CudaGraphs)
    capture._device = torch.device("cpu")
    assert capture(list) is (list if captures else None)
    assert ("no memory for a CUDA graph" in caplog.text) is not captures


def test_there_are_only_so_many(failing, monkeypatch):
    one = failing(None)
    monkeypatch.setattr(rounds, "MOST_GRAPHS", 2)
    monkeypatch.setattr(rounds, "Round", lambda bucket, *_: SimpleNamespace(run=lambda *_: bucket))
    found = [one._run(Bucket(1, length), []) for length in (1, 2, 3, 2)]
    assert found == [Bucket(1, 1), Bucket(1, 2), None, Bucket(1, 2)]
