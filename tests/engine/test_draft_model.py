"""The guesser around a draft model."""

from types import SimpleNamespace

import pytest

from tandem.drafting.draft_model import DraftModel
from tandem.scheduler import Decode
from tests.engine.builders import make_request


@pytest.mark.parametrize(
    ("lacking", "ready", "fed"),
    [
        ([1, 2, 3], [0, 1, 2], []),
        ([40, 1, 3], [1, 2], [(0, 12)]),
        ([40, 13, 3, 20], [1, 2], []),
        ([40, 12, 1, 20], [1, 2], [(3, 3)]),
        ([17], [], [(0, 16)]),
    ],
)
def test_who_lacks_least_is_ready_first_and_one_that_lacks_much_reads_a_part(lacking, ready, fed):
    requests = [make_request([1] * 50) for _ in lacking]
    for request, missing in zip(requests, lacking, strict=True):
        request.draft_computed = 50 - missing
    config = SimpleNamespace(max_position=100)
    model = DraftModel(SimpleNamespace(config=config), token_budget=16)
    read = []
    model._forward = lambda tokens, queries, rows: read.append((queries[0].start, len(tokens)))
    assert model.ready([Decode(request, 4) for request in requests]) == ready
    assert read == [(50 - lacking[place], count) for place, count in fed]
    for place, count in fed:
        assert requests[place].draft_computed == 50 - lacking[place] + count
