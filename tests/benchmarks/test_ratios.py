"""Adaptive speculation is compared with the best of the others."""

import random

import pytest

from benchmarks import ratios
from benchmarks.common import Run
from benchmarks.ratios import against_best


def turns(speed: float, noise: float, seed: int, count: int = 40) -> list[Run]:
    draws = random.Random(seed)
    return [Run(round(1000 * speed * draws.gauss(1, noise)), 1.0) for _ in range(count)]


def test_without_noise_it_is_the_ratio():
    ratio = against_best({"a": turns(2.0, 0, 1), "b": turns(4.0, 0, 2), "c": turns(3.0, 0, 3)}, "c")
    assert ratio == pytest.approx((0.75, 0.75, 0.75))


def test_the_best_of_many_noisy_ones_is_not_taken_for_better_than_it_is(monkeypatch):
    """All of these are as fast; the ratio to the largest figure would be below 1 in the mean."""
    monkeypatch.setattr(ratios, "RESAMPLED", 2)
    found = []
    for seed in range(40):
        each = {str(name): turns(1.0, 0.1, 100 * seed + name) for name in range(6)}
        found.append(against_best(each, "0").value)
    assert sum(found) / len(found) == pytest.approx(1.0, abs=0.01)


def test_the_bounds_hold_what_noise_explains():
    ratio = against_best({"a": turns(1.0, 0.1, 1), "b": turns(1.0, 0.1, 2)}, "a")
    assert ratio.low < ratio.value < ratio.high
    assert 0.04 < ratio.high - ratio.low < 0.12


def test_what_comes_in_every_second_round_makes_no_difference():
    """Prompts to read, of one contender in odd rounds and of another in even ones."""
    fast, slow, steady = Run(4000, 1.0), Run(1000, 1.0), Run(2500, 1.0)
    each = {"a": [steady] * 80, "b": [fast, slow] * 40, "c": [slow, fast] * 40}
    assert against_best(each, "a").value == pytest.approx(1.0, abs=0.1)
