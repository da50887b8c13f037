"""Turns pydantic's validation errors into sentences a user can act on."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

UNKNOWN = "extra_forbidden"
MISSING = "missing"
LONGEST_VALUE = 80  # characters of what a sentence quotes
LONGEST_REASON = 300


def no_bool(value: Any) -> Any:
    """Refuses true and false where a number is due (pydantic would read them as 1 and 0)."""
    if isinstance(value, bool):
        raise ValueError("Input should be a number, not true or false")
    return value


def sentences(error: ValidationError, kind: str) -> str:
    """The first problem of `error` in one sentence; `kind` says what the names are."""
    problem = error.errors(include_url=False, include_context=False)[0]
    name = short(str(problem["loc"][0]) if problem["loc"] else kind)
    if problem["type"] == UNKNOWN:
        return f"Unknown {kind} {name}: remove it or correct its name."
    if problem["type"] == MISSING:
        return f"The {kind} {name} is missing: set it."
    text = problem["msg"].removeprefix("Value error, ").rstrip(".")
    _, should, demand = text.partition(" should ")
    reason = f"it must {demand}" if should else f"it cannot be read: {text}"
    value = short(problem["input"])
    return f"The {kind} {name} is {value}, but {_cut(reason, LONGEST_REASON)}."


def short(value: Any) -> str:
    """A value as a sentence quotes it: on one line, and cut where it is long."""
    return _cut(repr(value), LONGEST_VALUE)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
