"""What hostile clients send: shared by the tests of the model alone and of a real server."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from tandem import SamplingParams

LARGE_PROMPT = b"t1" * (1 << 16)
HUGE = [10**30, -(10**30), 10**4000, 1 << 63, -(1 << 63) - 1]
FLOATS = [float("nan"), float("inf"), -float("inf"), 5e-324, 1e308, -0.0]
PATHS = ["/etc/passwd", "../../secret", "file:///etc/passwd", "a\0b", "~", "x" * 900]
STRINGS = st.text(st.characters(), max_size=20) | st.sampled_from(["", "\ud800", "\n", *PATHS])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 300),
    st.sampled_from(HUGE),
    st.floats(),
    st.sampled_from(FLOATS),
    STRINGS,
    st.integers().map(str),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(STRINGS | st.integers(0, 99).map(str), inner, max_size=3)
    ),
    max_leaves=6,
) | st.integers(-5, 300).map(lambda one: [one] * 2000)
OWN = ("image", "self", "best_of", "id", "cancel_id", "cancel")
NAMES = st.sampled_from([*SamplingParams.model_fields, *OWN])
# From some depth on JSON cannot be read, a little above it what is read cannot be told.
DEPTHS = st.integers(1, 20) | st.integers(500, 1000) | st.just(30_000)


def written(value: Any) -> str:
    """As JSON, lone surrogates and numbers that no JSON has included."""
    return json.dumps(value)


def doubled(pairs: list[tuple[str, Any]]) -> str:
    """An object that may say the same key twice."""
    return "{" + ", ".join(f"{written(key)}: {written(value)}" for key, value in pairs) + "}"


def nested(keys: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """An object of which one value is deep."""
    return st.builds(
        lambda key, depth, pair: f"{{{written(key)}: {pair[0] * depth}1{pair[1] * depth}}}",
        keys,
        DEPTHS,
        st.sampled_from([("[", "]"), ('{"a": ', "}")]),
    )


OBJECTS = st.lists(st.tuples(NAMES | STRINGS, VALUES), max_size=4).map(doubled)
JSON = st.one_of(OBJECTS, nested(NAMES), VALUES.map(written)).map(str.encode)
JSON |= st.binary(max_size=40)
PROMPTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40).map(str.encode),
    st.binary(max_size=40),
    st.sampled_from([*(path.encode() for path in PATHS), LARGE_PROMPT]),
)
