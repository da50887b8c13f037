"""Where there is no memory for a graph, a step goes without one; and there are only so many."""

from types import SimpleNamespace

import pytest
import torch

from tandem.gpu import rounds
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


def behind(error, words):
    """Another one, raised while this one was handled."""
    later = RuntimeError(words)
    later.__context__ = error
    return later


@pytest.mark.parametrize(
    "error",
    [
        behind(
            RuntimeError("CUDA error: out of memory"),
            "CUDA error: operation failed due to a previous error during capture",
        ),
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


def test_there_are_only_so_many(failing, monkeypatch):
    one = failing(None)
    monkeypatch.setattr(rounds, "MOST_GRAPHS", 2)
    monkeypatch.setattr(rounds, "Round", lambda bucket, *_: SimpleNamespace(run=lambda *_: bucket))
    found = [one._run(Bucket(1, length), []) for length in (1, 2, 3, 2)]
    assert found == [Bucket(1, 1), Bucket(1, 2), None, Bucket(1, 2)]
