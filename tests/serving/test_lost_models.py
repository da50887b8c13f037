"""What is taken for a model's loss."""

import os

import pytest

from tandem.serving.lost_models import Stubs


def told(monkeypatch, *looks):
    """What is lost at each look, of which each is what runs and what has ended."""
    seen = iter(looks)
    monkeypatch.setattr(Stubs, "_children", lambda self: next(seen))
    stubs = Stubs(os.getpid())
    return [stubs.lost() for _ in looks]


@pytest.mark.parametrize(
    ("looks", "lost"),
    [
        pytest.param([({1: "a"}, set()), ({}, {1}), ({}, set())], [], id="unloaded"),
        pytest.param([({1: "a"}, set()), ({2: "a"}, {1}), ({2: "a"}, set())], [], id="reloaded"),
        pytest.param([({1: "a"}, set()), ({}, {1}), ({}, {1}), ({}, {1})], [(2, "a")], id="once"),
        pytest.param([({1: "a", 2: "b"}, set()), *[({2: "b"}, {1})] * 3], [(2, "a")], id="of two"),
        pytest.param(
            [({1: "a", 2: "a"}, set()), *[({2: "a"}, {1})] * 3], [(2, "a")], id="an instance"
        ),
        pytest.param(
            [({1: "a", 2: "b"}, set()), ({2: "b"}, {1}), *[({2: "b"}, {1, 3})] * 4],
            [(2, "a"), (3, "a")],
            id="again, before it was looked at",
        ),
        pytest.param([({1: "a"}, set()), *[({1: "a"}, {7})] * 3], [], id="another child"),
    ],
)
def test_a_process_that_stays_ended_is_a_model_lost(monkeypatch, looks, lost):
    found = told(monkeypatch, *looks)
    assert [(at, name) for at, names in enumerate(found) for name in names] == lost
