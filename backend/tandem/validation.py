"""Turns pydantic's validation errors into sentences a user can act on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
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


def sentences(
    error: ValidationError, kind: str, names: Iterable[str], others: Mapping[str, str] | None = None
) -> str:
    """The first problem of `error` in one sentence; `kind` says what the names are. others: what
    else a name is called, by that."""
    problem = error.errors(include_url=False, include_context=False)[0]
    name = short(str(problem["loc"][0]) if problem["loc"] else kind)
    if problem["type"] == UNKNOWN:
        return f"Unknown {kind} {name}: {_instead(str(problem['loc'][0]), names, others or {})}."
    if problem["type"] == MISSING:
        return f"The {kind} {name} is missing: set it."
    text = problem["msg"].removeprefix("Value error, ").rstrip(".")
    _, should, demand = text.partition(" should ")
    reason = f"it must {demand}" if should else f"it cannot be read: {text}"
    value = short(problem["input"])
    return f"The {kind} {name} is {value}, but {_cut(reason, LONGEST_REASON)}."


def _instead(name: str, names: Iterable[str], others: Mapping[str, str]) -> str:
    """What to do about an unknown name, of any length."""
    alike = get_close_matches(name[:LONGEST_VALUE], names, 1)
    meant = others.get(name) or (alike[0] if alike else None)
    return f"use {meant}" if meant else "remove it or correct its name"


def short(value: Any) -> str:
    """A value as a sentence quotes it: on one line, and cut where it is long."""
    return _cut(repr(value), LONGEST_VALUE)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
