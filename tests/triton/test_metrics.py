"""What an operator reads on /metrics."""

from contextlib import closing

import pytest

from tandem.metrics import (
    ACCEPTANCE_RATE,
    ACCEPTED_TOKENS,
    CATALOGUE,
    DRAFT_TOKENS,
    DRAFTING,
    END_TO_END,
    FAILED,
    FINISHED,
    GENERATED_TOKENS,
    PROMPT_TOKENS,
    RUNNING,
    UP,
    VERIFYING,
)
from tests.triton.protocol import Refused, responses, sampling
from tests.triton.scrape import read, settled, waited


def test_all_families_are_there_before_any_request(urls):
    found = {name for name, *_ in read(urls)}
    without_label = {one.name for one in CATALOGUE if not one.label and one.at_once}
    histograms = {one.name for one in CATALOGUE if one.kind == "histogram"}
    assert without_label - histograms <= found
    assert {f"{name}_count" for name in histograms} <= found
    known = {(one.name, (one.label, value)) for one in CATALOGUE for value in one.values}
    assert known
    assert known <= read(urls).keys()
    assert waited(urls, lambda found: found[UP,] == 1)[UP,] == 1


def test_a_request_is_counted(urls):
    before = settled(urls)
    outputs = {"return_num_input_tokens": True, "return_speculation_stats": True}
    whole = list(responses(urls.grpc, ask("def main(argv):\n", 40) | outputs))
    (end,) = [one.outputs for one in whole if "total_draft_tokens" in one.outputs]
    drafted, accepted = (
        end[name][0] for name in ("total_draft_tokens", "total_accepted_draft_tokens")
    )
    finished = (FINISHED, ("finished_reason", "length"))
    ended = f"{END_TO_END}_count"
    after = waited(
        urls,
        lambda found: found[finished] > before[finished] and found[ended,] > before[ended,],
    )
    grown = {key: after[key] - before.get(key, 0) for key in after}
    assert grown[finished] == 1
    assert grown[GENERATED_TOKENS,] == 40
    assert grown[PROMPT_TOKENS,] == end["num_input_tokens"][0]
    assert grown[DRAFT_TOKENS,] == drafted > 0
    assert grown[ACCEPTED_TOKENS,] == accepted > 0
    assert grown[f"{END_TO_END}_count",] == 1
    assert 0 < grown[f"{END_TO_END}_sum",] < 60
    assert after[RUNNING,] == 0
    assert 0 < after[ACCEPTANCE_RATE,] <= 1


def test_rounds_are_timed(urls):
    before = settled(urls)
    list(responses(urls.grpc, ask("def main(argv):\n", 40)))
    after = settled(urls)
    drafting, verifying, whole = (
        [after[f"{name}_{part}",] - before[f"{name}_{part}",] for part in ("count", "sum")]
        for name in (DRAFTING, VERIFYING, END_TO_END)
    )
    assert whole[0] == 1
    assert 2 <= drafting[0] <= verifying[0] <= 41
    assert 0 < drafting[1] < drafting[1] + verifying[1] < whole[1]


def test_a_refused_request_is_counted(urls):
    key = (FAILED, ("reason", "invalid"))
    before = settled(urls).get(key, 0)
    with pytest.raises(Refused):
        list(responses(urls.grpc, {"text_input": "a", "sampling_parameters": "{"}))
    with pytest.raises(Refused):  # by the engine
        list(responses(urls.grpc, {"input_ids": [1 << 20]}))
    assert waited(urls, lambda found: found.get(key, 0) == before + 2)[key] == before + 2


def test_running_requests_are_seen(urls):
    aborted = (FINISHED, ("finished_reason", "abort"))
    before = read(urls)[aborted]
    with closing(responses(urls.grpc, ask("def main(argv):\n", 1900))) as answers:
        next(answers)
        assert waited(urls, lambda found: found[RUNNING,] == 1)[RUNNING,] == 1
    after = waited(urls, lambda found: found[RUNNING,] == 0 and found[aborted] > before)
    assert (after[RUNNING,], after[aborted]) == (0, before + 1)


def ask(text, tokens):
    return {
        "text_input": text,
        "stream": True,
        "sampling_parameters": sampling(max_tokens=tokens),
    }
