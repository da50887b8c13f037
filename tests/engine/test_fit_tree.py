"""A tree fitted to measured accuracies is the best one of its size."""

import itertools
import json
import math
import random

import pytest
from typer.testing import CliRunner

from tandem import SamplingParams
from tandem.cli import app
from tandem.config import EngineConfig
from tandem.errors import ConfigError, InvalidRequestError
from tandem.fit_tree import RANKS, fit, measure, read_prompts

RNG = random.Random(4)


@pytest.mark.parametrize("seed", range(5))
def test_no_tree_of_that_size_is_expected_to_bring_more(seed):
    """All trees of 5 nodes over 3 places with 2 guesses, compared."""
    rng = random.Random(seed)
    accuracies = [sorted((rng.random() / 2 for _ in range(2)), reverse=True) for _ in range(3)]
    every = [p for n in (1, 2, 3) for p in itertools.product(range(2), repeat=n)]
    value = {path: math.prod(accuracies[d][r] for d, r in enumerate(path)) for path in every}
    best = max(
        sum(value[path] for path in tree)
        for tree in itertools.combinations(every, 5)
        if all(path[:-1] in tree for path in tree if len(path) > 1)
    )
    found = fit(accuracies, 5)
    assert len(found.paths) == 5
    assert found.expected == pytest.approx(1 + best)
    EngineConfig(
        model=".", draft_model=".", speculative_method="medusa", speculative_tree=found.paths
    )


def test_guesses_that_are_never_right_are_no_nodes():
    assert fit([[0.5, 0.0], [0.0, 0.0]], 8).paths == [[0]]


def test_the_tree_brings_what_is_expected_of_it(engine, good_draft):
    """Measured on texts, then drafted on the same ones: the product of shares is an estimate."""
    prompts = [" ".join(f"t{t}" for t in RNG.choices(range(96), k=12)) for _ in range(12)]
    one = engine(draft_model=good_draft, num_speculative_tokens=3)
    accuracies = measure(one, prompts, 3, 60)
    assert [len(line) for line in accuracies] == [RANKS] * 3
    assert accuracies[0][0] > 0.5
    found = fit(accuracies, 6)
    size = {"speculative_tree": found.paths, "num_speculative_tokens": len(found.paths)}
    params = SamplingParams(temperature=0, max_tokens=60)
    outputs = engine(draft_model=good_draft, **size).generate(prompts, params)
    rounds = sum(o.stats.rounds for o in outputs)
    brought = 1 + sum(o.stats.accepted for o in outputs) / rounds
    assert brought == pytest.approx(found.expected, rel=0.15)


def test_a_method_without_a_model_is_refused(engine):
    with pytest.raises(ConfigError, match="speculative_method is ngram"):
        measure(engine(speculative_method="ngram"), ["t1 t2"], 3, 8)


@pytest.mark.parametrize("text", ["{", "[]", '"def"', "[1]"])
def test_bad_prompt_files_are_one_sentence(tmp_path, text):
    path = tmp_path / "prompts.json"
    path.write_text(text)
    with pytest.raises(InvalidRequestError, match=str(path)):
        read_prompts(path)


def test_the_command_prints_lines_for_the_configuration(tmp_path):
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(["def add(a, b):", "import os\n\nclass"]))
    options = ["fit-tree", str(path), "--nodes", "6", "--depth", "3", "--max-tokens", "24"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    assert 'key: "speculative_tree"' in result.output
    assert 'key: "num_speculative_tokens" value { string_value: "6" }' in result.output
