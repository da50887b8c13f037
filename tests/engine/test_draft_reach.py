"""A draft that was made for shorter texts than the target: behind these the text goes on without
drafts."""

from pathlib import Path

import pytest

from tandem import Engine, SamplingParams
from tests.engine.checkpoints import make_checkpoint

POSITIONS = 64
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft with few positions."""
    folder = tmp_path_factory.mktemp("models") / "short"
    return make_checkpoint(folder, max_position_embeddings=POSITIONS)


def text_of(engine: Engine, length: int) -> tuple[list[int], int]:
    """What follows a prompt of so many tokens, and how many tokens were drafted for it."""
    [output] = engine.generate([[1 + place % 7 for place in range(length)]], GREEDY)
    return output.token_ids, output.stats.drafted


@pytest.mark.parametrize("length", [10, 40, POSITIONS - 2, POSITIONS - 1, POSITIONS + 30])
def test_a_text_goes_on_behind_the_drafts_positions(engine, short, length):
    plain, _ = text_of(engine(speculative_method="none"), length)
    text, drafted = text_of(engine(draft_model=short, adaptive_speculation=False), length)
    assert text == plain
    assert bool(drafted) == (length < POSITIONS - 1)


@pytest.mark.parametrize("method", ["draft_model", "ngram,draft_model"])
def test_nothing_is_drafted_behind_them(engine, short, method):
    made = engine(draft_model=short, speculative_method=method, adaptive_speculation=True)
    assert text_of(made, POSITIONS) == text_of(engine(speculative_method="none"), POSITIONS)


def test_the_limit_may_be_lower_and_holds_for_every_method(engine):
    made = engine(speculative_method="ngram", draft_max_model_len=32, adaptive_speculation=False)
    assert text_of(made, 20)[1] > 0
    assert text_of(made, 32)[1] == 0
