"""What the log says of speculation."""

import logging

import pytest

from tandem.metrics import (
    ACCEPTED_TOKENS,
    DRAFT_POSITIONS,
    FINISHED,
    GENERATED_TOKENS,
    ROUNDS,
    Key,
)
from tandem.minutes import Minutes


@pytest.fixture
def minute(caplog):
    """Takes reports, one a second, and returns what was said in the minute."""
    caplog.set_level(logging.INFO, "tandem")
    now = [0.0]
    minutes = Minutes(lambda: now[0])

    def take(counts, seconds=60):
        caplog.clear()
        for _ in range(seconds):
            now[0] += 1
            minutes.take(counts)
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    return take


def counts_of(rounds, reached, kept):
    """Of a second."""
    return {
        Key(ROUNDS): rounds,
        Key(DRAFT_POSITIONS): reached,
        Key(ACCEPTED_TOKENS): kept,
        Key(GENERATED_TOKENS): rounds + kept,
        Key(FINISHED, "stop"): 1,
        Key(FINISHED, "length"): 1,
    }


def test_a_line_a_minute(minute):
    said = "In 60 s 120 requests ended, and 1560 tokens were generated: 2.60 a pass of the target, "
    said += "of at most 3.00; drafts were kept to 80%."
    assert minute(counts_of(10, 20, 16)) == [("INFO", said)]
    assert minute(counts_of(10, 20, 16), seconds=59) == []
    assert len(minute(counts_of(10, 20, 16), seconds=1)) == 1


def test_nothing_is_said_of_nothing(minute):
    assert minute({}) == []
    assert minute({Key(FINISHED, "abort"): 1}) == []


def test_without_drafts(minute):
    [(level, said)] = minute(counts_of(10, 0, 0))
    assert level == "INFO"
    assert said.endswith("600 tokens were generated, without drafts.")


@pytest.mark.parametrize(
    ("reached", "kept", "level"), [(20, 7, "WARNING"), (20, 9, "INFO"), (8, 1, "INFO")]
)
def test_it_warns_where_little_of_much_is_kept(minute, reached, kept, level):
    [(found, said)] = minute(counts_of(10, reached, kept))
    assert found == level
    assert ("num_speculative_tokens" in said) == (level == "WARNING")
