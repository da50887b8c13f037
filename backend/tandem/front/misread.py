"""Which value of a request to generate is of another type than the model wants: Triton says only
that one is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

from tandem.front.checks import MOST_TENSORS

LONGEST_INPUT: Final = 256
"""Characters of a name that is kept."""
MISREAD: Final = re.compile(r"(?P<what>.+): attempt to access JSON non-\S+ as (?P<kind>\S+)")
"""What Triton 2.51 says of it."""
_KINDS: Final = {
    "BYTES": "string",
    "BOOL": "boolean",
    "INT": "signed-integer",
    "UINT": "unsigned-integer",
}
"""As it calls values, by the model's types without their sizes."""
_OF_ANY: Final = {"id": "string", "parameters": "object"}
"""Of any request to generate."""
_TYPES: Final[Mapping[str, type]] = {
    "string": str,
    "boolean": bool,
    "signed-integer": int,
    "unsigned-integer": int,
    "object": dict,
}

Members = Mapping[str, frozenset[type]]
"""Of a request, the types that they have. (Values may be large, and are passed on.)"""


def members_of(said: Mapping[str, Any]) -> Members:
    """Of what a body says, and its `parameters`, which Triton reads as if they stood beside these:
    but no more than a request may have."""
    nested = said.get("parameters")
    every = chain(said.items(), nested.items() if isinstance(nested, dict) else ())
    return {
        name: frozenset(map(type, value if isinstance(value, list) else [value]))
        for name, value in islice(every, MOST_TENSORS)
        if len(name) <= LONGEST_INPUT
    }


def sentence(wrong: re.Match[str], members: Members, inputs: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong, and what to do. wrong: of MISREAD; inputs: as the model declares them in
    Triton's protocol; none, where that is not known."""
    kind, whose = wrong["kind"], f"the body ({wrong['what']})"
    declared = {one["name"]: _KINDS.get(one["datatype"].rstrip("0123456789")) for one in inputs}
    for name, wanted in (_OF_ANY | declared).items():
        if wanted == kind and not members.get(name, frozenset()) <= {_TYPES[kind]}:
            whose = f"'{name}'"
    return f"A value of {whose} is no {kind}: send one there, as the model declares it."
