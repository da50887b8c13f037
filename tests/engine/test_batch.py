"""What a step's pass is to compute."""

import pytest
import torch

from tandem.batch import target_batch
from tandem.drafting import Draft
from tandem.scheduler import Decode, Prefill, StepPlan
from tests.engine.builders import make_request


def decoding(tokens):
    request = make_request(tokens)
    request.computed = len(tokens) - 1
    return request


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("drawn", [None, [True, False]])
def test_requests_whose_prompts_end_have_empty_drafts_behind_the_others(tree, drawn):
    decodes = [Decode(decoding([1, 2]), 4), Decode(decoding([3]), 4)]
    prompts = [make_request([4, 5, 6]), make_request([7, 8])]
    prefills = [Prefill(prompts[0], 2), Prefill(prompts[1], 2)]  # the first one's goes on
    q = torch.zeros(2, 2, 9) if drawn else None
    draft = Draft([[11, 12], [13]], [[0, 0], [0]] if tree else None, q, drawn)
    batch = target_batch(StepPlan(decodes, prefills), draft)
    assert batch.tokens == [2, 11, 12, 3, 13, 4, 5, 7, 8]
    assert batch.rows == [0, 1, 2, 3, 4, 8]
    assert batch.requests == [decodes[0].request, decodes[1].request, prompts[1]]
    assert batch.draft.tokens == [[11, 12], [13], []]
    assert batch.draft.parents == ([[0, 0], [0], []] if tree else None)
    assert batch.draft.drawn == (drawn and [True, False, False])
    assert [query.parents for query in batch.queries[:2]] == (
        [[-1, 0, 0], [-1, 0]] if tree else [None, None]
    )
    assert batch.draft.q is q
