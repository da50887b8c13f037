"""Turns pydantic's validation errors into sentences a user can act on."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

UNKNOWN = "extra_forbidden"
MISSING = "missing"


def no_bool(value: Any) -> Any:
    """Refuses true and false where a number is due (pydantic would read them as 1 and 0)."""
    if isinstance(value, bool):
        raise ValueError("Input should be a number, not true or false")
    return value


def sentences(error: ValidationError, kind: str) -> str:
    """The first problem of `error` in one sentence; `kind` says what the names are."""
    problem = error.errors(include_url=False, include_context=False)[0]
    name = str(problem["loc"][0]) if problem["loc"] else kind
    if problem["type"] == UNKNOWN:
        return f"Unknown {kind} {name!r}: remove it or correct its name."
    if problem["type"] == MISSING:
        return f"The {kind} {name!r} is missing: set it."
    text = problem["msg"].removeprefix("Value error, ").rstrip(".")
    _, should, demand = text.partition(" should ")
    reason = f"it must {demand}" if should else f"it cannot be read: {text}"
    return f"The {kind} {name!r} is {_short(problem['input'])}, but {reason}."


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
