"""Where speculation stops paying, and what is recommended for it."""

from pathlib import Path

import pytest

from tandem.config import EngineConfig
from tools.load_profiles.advice import (
    PAYS,
    best_length,
    crossover,
    gains,
    most_apart,
    recommend,
    remarks,
)
from tools.load_profiles.points import Point, failed
from tools.load_profiles.profile import Load
from tools.load_profiles.report import verdict
from tools.load_profiles.target import Drafting

METHOD = {"speculative_method": "draft_model"}
CHAIN = Drafting("draft_model", 4, False, True, False, METHOD)
TREE = Drafting("draft_model", 12, True, True, False, METHOD | {"speculative_tree": "4"})
PLAIN = Drafting("none", 0, False, True, False, {})


def point(clients, length, *speeds, rate=0.6, preemptions=0):
    return Point(
        Load("concurrency", clients),
        length,
        list(speeds),
        [0.5] * len(speeds),
        {50: 0.1},
        {50: 0.01},
        {50: 0.5},
        100 if length else 0,
        int(100 * rate) if length else 0,
        200,
        preemptions,
    )


def sweep(**of_lengths):
    """`plain=[…], d4=[…]`: tokens/s with 1, 2, 4, … clients."""
    return [
        point(2**place, 0 if name == "plain" else int(name[1:]), speed)
        for name, speeds in of_lengths.items()
        for place, speed in enumerate(speeds)
    ]


def test_a_load_that_fails_with_drafts_alone_is_no_load_less():
    """It was served without: there drafts do not pay, however well they do with fewer clients."""
    found = sweep(plain=[100, 190, 350, 500], d4=[180, 300, 400, 510], d8=[200, 340, 480])
    found.append(failed(Load("concurrency", 8), 8, "The queue is full."))
    assert gains(found, 8)[8] == 0.0
    assert crossover(gains(found, 8)) < 8
    assert best_length(found) == 4
    assert "none with 8, which failed" in verdict(found, CHAIN, 8)
    keys = {line.key: line.value for line in recommend(found[:4] + found[8:], CHAIN, 64, 5)}
    assert keys["num_speculative_tokens"] == "8"
    assert int(keys["speculative_disable_by_batch_size"]) <= 8


def test_lengths_are_compared_by_the_loads_that_both_serve():
    found = sweep(plain=[100] * 4, d4=[1, 160, 130, 110], d8=[170, 150, 120, 1])
    late = {(1, 4), (8, 8)}
    found = [
        failed(one.load, one.draft_tokens, "The queue is full.")
        if (one.load.value, one.draft_tokens) in late
        else one
        for one in found
    ]
    assert best_length(found) == 4


def test_a_load_that_fails_anyway_says_nothing():
    found = sweep(plain=[100], d4=[180])
    found += [failed(Load("concurrency", 2), length, "The queue is full.") for length in (0, 4)]
    assert gains(found, 4) == {1: 1.8}


def at_rates(**of_lengths):
    """`plain=[…], d4=[…]`: seconds of a request at 1, 2, 4, … requests a second; all of them with
    the same tokens/s."""
    return [
        one._replace(
            load=Load("request_rate", one.load.value),
            request_s=one.tokens_per_second,
            tokens_per_second=[100] * len(one.tokens_per_second),
        )
        for one in sweep(**of_lengths)
    ]


def lines(points, output_tokens=50, wait=5, how=CHAIN):
    return {line.key: line.value for line in recommend(points, how, output_tokens, wait)}


def test_a_gain_is_of_repeats_that_follow_each_other():
    points = [point(1, 0, 100, 50, 80), point(1, 4, 150, 75, 400)]
    assert gains(points, 4) == {1: 1.5}


def test_one_lucky_repeat_is_no_gain():
    points = [point(8, 0, 243, 551), point(8, 4, 334, 510)]
    assert gains(points, 4) == {8: 510 / 551}
    assert lines(points)["speculative_method"] == "none"


def test_where_nothing_was_drafted_a_difference_is_noise():
    points = sweep(plain=[100, 200, 300], d4=[150, 190, 330])
    points[4:] = [point._replace(drafted=1, accepted=0) for point in points[4:]]
    assert gains(points, 4) == {1: 1.5, 2: 1.0, 4: 1.0}
    assert "Next to nothing was drafted with 2, 4" in verdict(points, CHAIN, 4)
    assert "stops paying at about **1.9 clients" in verdict(points, CHAIN, 4)


def test_drafts_that_are_always_wrong_are_drafts():
    points = sweep(plain=[100], d4=[70])
    points[1] = points[1]._replace(drafted=800, accepted=0)
    assert gains(points, 4) == {1: 0.7}
    assert "nothing was drafted" not in verdict(points, CHAIN, 4)


def test_only_what_was_served_is_compared():
    points = [point(1, 0, 100), point(1, 4, 150), point(2, 0, 100)]
    points += [failed(Load("concurrency", 4), length, "The queue is full.") for length in (0, 4)]
    points += [point(1, 4, 1)._replace(load=Load("request_rate", 8))]
    assert gains(points, 4) == {1: 1.5}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({1: 2.0, 2: 1.5, 4: 1.1}, None),
        ({1: 0.9, 2: 0.8}, 1),
        ({1: 1.0, 2: 1.01}, 1),  # within the noise
        ({1: 2.0, 4: 2 * PAYS - 2.0}, 2.0),  # half-way, logarithmically
        ({1: 2.0, 2: 0.9, 4: 1.5, 8: PAYS - 0.47 / 3}, pytest.approx(4 * 2**0.75)),
        ({1: 0.9, 2: 1.5}, None),
        ({}, None),
    ],
)
def test_the_crossover(found, expected):
    assert crossover(found) == expected


def test_the_best_length_pays_and_is_best_on_the_whole():
    assert best_length(sweep(plain=[100, 100], d2=[140, 130], d4=[170, 90])) == 2
    assert best_length(sweep(plain=[100, 100], d2=[130, 120], d4=[170, 110])) == 4
    assert best_length(sweep(plain=[100, 100], d2=[99, 80])) == 0


def test_lines_where_speculation_stops_paying():
    found = lines(sweep(plain=[100, 180, 300, 400], d4=[200, 300, 310, 300]))
    assert found == METHOD | {
        "num_speculative_tokens": "4",
        "speculative_disable_by_batch_size": "5",
        "max_num_seqs": "2",  # 300 tokens/s are nearly 310
        "max_queue_size": "31",  # 310 tokens/s are 6.2 requests/s
    }


def test_lines_where_it_always_pays():
    found = lines(sweep(plain=[100, 180, 300], d4=[200, 300, 500]), wait=2)
    assert found == METHOD | {"num_speculative_tokens": "4", "max_queue_size": "20"}


def test_lines_where_it_never_pays():
    found = lines(sweep(plain=[100, 180, 182], d4=[80, 90, 90]))
    assert found == {"speculative_method": "none", "max_num_seqs": "2", "max_queue_size": "18"}


def test_a_queue_always_has_a_place():
    assert lines(sweep(plain=[1], d4=[2]), output_tokens=500)["max_queue_size"] == "1"


def test_where_nothing_was_served_nothing_is_recommended():
    nothing = [failed(Load("concurrency", 1), length, "No.") for length in (0, 4)]
    assert recommend(nothing, CHAIN, 50, 5) == []
    (said,) = remarks(nothing, CHAIN)
    assert said.startswith("The server drafted nothing")
    drafts_alone = [failed(Load("concurrency", 1), 0, "No."), point(1, 4, 100)]
    assert recommend(drafts_alone, CHAIN, 50, 5) == []


def test_at_a_rate_a_gain_is_how_much_sooner_requests_end():
    points = at_rates(plain=[0.4, 0.6], d4=[0.2, 0.6])
    points[2] = points[2]._replace(request_s=[0.2, 0.32], tokens_per_second=[100, 100])
    points[0] = points[0]._replace(request_s=[0.4, 0.4], tokens_per_second=[100, 100])
    assert gains(points, 4, "request_rate") == {1: 0.4 / 0.32, 2: 1.0}
    assert gains(points, 4) == {}


def test_repeats_of_a_rate_differ_in_how_soon_requests_end():
    (plain,) = at_rates(plain=[0.4])
    assert most_apart(plain._replace(request_s=[0.4, 0.6])) == pytest.approx(0.5)
    assert most_apart(plain._replace(tokens_per_second=[90, 120])) == 0


def test_rates_alone_say_whether_and_how_far_to_draft():
    points = at_rates(plain=[0.4, 0.6], d2=[0.3, 0.5], d4=[0.2, 0.7])
    found = recommend(points, CHAIN, 50, 5)
    assert [(line.key, line.value) for line in found] == [
        ("speculative_method", "draft_model"),
        ("num_speculative_tokens", "4"),
    ]
    assert found[-1].why == "requests end 2.00 times as soon with 1 requests/s"
    assert lines(at_rates(plain=[0.4], d4=[0.5])) == {"speculative_method": "none"}


def test_rates_count_beside_clients():
    clients = sweep(plain=[100, 200], d2=[120, 240], d4=[130, 250])
    assert best_length(clients) == 4
    points = [*clients, *at_rates(plain=[0.4, 0.6], d2=[0.3, 0.5], d4=[0.4, 0.8])]
    assert best_length(points) == 2
    never_at_once = [*sweep(plain=[100], d4=[100]), *at_rates(plain=[0.4], d4=[0.2])]
    found = lines(never_at_once)
    assert found["num_speculative_tokens"] == "4"
    [why] = [one.why for one in recommend(never_at_once, CHAIN, 50, 5) if one.value == "4"]
    assert why == "requests end 2.00 times as soon with 1 requests/s"
    assert "speculative_disable_by_batch_size" not in found


def test_a_verdict_of_rates():
    said = verdict(at_rates(plain=[0.4, 0.6], d4=[0.2, 0.6]), CHAIN, 4)
    assert said.startswith("It stops paying at about **2.0 requests/s**")
    assert said.endswith("drafted, in the least favourable repeat: 2.00 with 1, 1.00 with 2.")


def test_a_model_that_does_not_speculate_gets_no_line_about_it():
    found = lines(sweep(plain=[100, 180, 182]), how=PLAIN)
    assert found == {"max_num_seqs": "2", "max_queue_size": "18"}
    assert remarks(sweep(plain=[100]), PLAIN) == []
    assert verdict(sweep(plain=[100]), PLAIN, 0).startswith("Nothing is compared")


@pytest.mark.parametrize("how", [CHAIN, TREE])
@pytest.mark.parametrize("speeds", [[80, 90, 60], [200, 300, 310], [200, 150, 80]])
def test_the_engine_takes_what_is_recommended(speeds, how):
    found = lines(sweep(plain=[100, 180, 182], **{f"d{how.most}": speeds}), how=how)
    own = {"model": "a", "draft_model": "b", **how.parameters}
    taken = EngineConfig.from_triton_parameters(own | found, Path("/"))
    assert taken.lookahead == (how.most if max(speeds) > 100 else 0)


def test_the_lines_are_those_of_what_was_measured():
    found = lines(sweep(plain=[100], d12=[150]), how=TREE)
    assert {key: found[key] for key in TREE.parameters} == TREE.parameters
    assert found["num_speculative_tokens"] == "12"


def test_remarks():
    quiet = sweep(plain=[100], d4=[150])
    assert remarks(quiet, CHAIN) == []
    of_good, of_bad = ([point(1, 0, 9), point(1, 4, 18, rate=rate)] for rate in (0.9, 0.2))
    assert "90% of the drafted tokens" in remarks(of_good, CHAIN)[0]
    assert "Only 20%" in remarks(of_bad, CHAIN)[0]
    assert "preempted" in remarks([*quiet, point(2, 4, 9, preemptions=1)], CHAIN)[0]
    noisy = [point(1, 0, 100, 130), point(1, 4, 150, 150)]
    assert most_apart(noisy[0]) == pytest.approx(0.3)
    assert "differ by up to 30%" in remarks(noisy, CHAIN)[0]


def test_a_longer_draft_is_suggested_only_behind_the_longest():
    points = [point(1, 0, 9), point(1, 2, 20, rate=0.9), point(1, 4, 18, rate=0.9)]
    assert remarks(points, CHAIN) == []


def test_of_a_trees_nodes_most_cannot_be_accepted():
    for rate in (0.1, 0.9):
        assert remarks([point(1, 0, 9), point(1, 12, 18, rate=rate)], TREE) == []
