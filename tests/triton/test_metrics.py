"""What an operator reads on /metrics."""

from contextlib import closing

import pytest

from tandem.metrics import (
    ACCEPTANCE_LENGTH,
    ACCEPTANCE_RATE,
    ACCEPTED_PER_POSITION,
    ACCEPTED_TOKENS,
    BETWEEN_TOKENS,
    CATALOGUE,
    DRAFT_POSITIONS,
    DRAFT_TOKENS,
    DRAFTING,
    DRAFTS,
    EFFICIENCY,
    END_TO_END,
    FAILED,
    FINISHED,
    FIRST_TOKEN,
    GENERATED_TOKENS,
    KV_USAGE,
    LENGTH,
    MOST_EFFICIENCY,
    PREFIX_HITS,
    PREFIX_QUERIES,
    PROMPT_TOKENS,
    QUEUED,
    ROUNDS,
    RUNNING,
    UP,
    VERIFYING,
)
from tests.triton.protocol import Refused, last_of, responses, sampling
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
    end = last_of(responses(urls.grpc, ask("def main(argv):\n", 40) | STATISTICS))
    drafted, accepted, rounds = (
        end[name][0] for name in ("total_draft_tokens", "total_accepted_draft_tokens", "num_rounds")
    )
    grown = growth(before, settled(urls))
    assert grown[FINISHED, ("finished_reason", "length")] == 1
    assert grown[GENERATED_TOKENS,] == 40
    assert grown[PROMPT_TOKENS,] == end["num_input_tokens"][0]
    assert 0 < grown[DRAFTS,] == rounds <= grown[ROUNDS,] < 40
    assert grown[DRAFT_TOKENS,] == grown[DRAFT_POSITIONS,] == drafted > 0  # of a chain
    assert grown[ACCEPTED_TOKENS,] == accepted > 0
    positions = [key for key in grown if key[0] == ACCEPTED_PER_POSITION]
    by_position = [grown[key] for key in sorted(positions, key=lambda key: int(key[1][1]))]
    assert sum(by_position) == accepted
    assert by_position == sorted(by_position, reverse=True)


def test_a_requests_times_are_counted(urls):
    before = settled(urls)
    list(responses(urls.grpc, ask("def main(argv):\n", 40)))
    grown = growth(before, settled(urls))
    assert [grown[f"{name}_count",] for name in (QUEUED, FIRST_TOKEN, END_TO_END)] == [1, 1, 1]
    queued, first, whole = (grown[f"{name}_sum",] for name in (QUEUED, FIRST_TOKEN, END_TO_END))
    assert 0 <= queued < first < whole < 60
    assert grown[f"{BETWEEN_TOKENS}_count",] == 39
    assert 0 < grown[f"{BETWEEN_TOKENS}_sum",] <= whole - first + 1e-3


def test_how_drafts_fare_of_late(urls):
    list(responses(urls.grpc, ask("def main(argv):\n", 40)))
    found = settled(urls)
    assert 0 < found[ACCEPTANCE_RATE,] <= 1
    assert found[LENGTH,] > 0
    assert found[ACCEPTANCE_LENGTH,] > 1
    assert 1 < found[EFFICIENCY,] <= found[MOST_EFFICIENCY,] <= 1 + found[LENGTH,] + 1e-6
    assert found[RUNNING,] == 0


def test_prefixes_are_found_again(urls):
    prompt = "prefixes = [1]\n" + "x = 1\n" * 150
    for known in (False, True):
        before = settled(urls)
        outputs = last_of(responses(urls.grpc, ask(prompt, 2) | STATISTICS))
        grown, tokens = growth(before, settled(urls)), outputs["num_input_tokens"][0]
        assert tokens > 256  # twice what vLLM's blocks hold on a CPU
        assert grown[PREFIX_QUERIES,] == tokens
        assert tokens // 2 <= grown[PREFIX_HITS,] < tokens if known else not grown[PREFIX_HITS,]


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
        found = waited(urls, lambda found: found[RUNNING,] == 1 and all(in_use(found)))
        assert found[RUNNING,] == 1
        assert all(0 < share < 1 for share in in_use(found))
    after = waited(urls, lambda found: found[RUNNING,] == 0 and found[aborted] > before)
    assert (after[RUNNING,], after[aborted]) == (0, before + 1)


STATISTICS = {"return_num_input_tokens": True, "return_speculation_stats": True}


def in_use(found):
    """Shares of the KV caches."""
    shares = [value for (name, *_), value in found.items() if name == KV_USAGE]
    assert shares
    return shares


def growth(before, after):
    return {key: after[key] - before.get(key, 0) for key in after}


def ask(text, tokens):
    return {
        "text_input": text,
        "stream": True,
        "sampling_parameters": sampling(max_tokens=tokens),
    }
