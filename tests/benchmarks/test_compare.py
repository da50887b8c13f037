"""The figures of `benchmarks.compare`: what a prompt took, and decoding without it."""

import pytest

from benchmarks import compare
from benchmarks.common import Run, interleave, summarized

NEW = 101
FIRST_S, TOKEN_S = 0.5, 0.01


class Peer:
    """Takes half a second for a prompt and its token, and 10 ms for each token more."""

    def run(self, batch, new_tokens):
        return Run(new_tokens * len(batch), FIRST_S + TOKEN_S * (new_tokens - 1))


def test_decoding_is_told_from_the_first_token():
    timed = compare._timed(Peer(), NEW)
    summary = summarized(interleave({"a peer": timed}, [[[1]], [[2]]], repeats=3))["a peer"]
    assert summary.tokens_per_second == pytest.approx(NEW / 1.5)
    assert summary.first_seconds == pytest.approx(FIRST_S)
    assert compare._decoding(summary, NEW) == pytest.approx(1 / TOKEN_S)
