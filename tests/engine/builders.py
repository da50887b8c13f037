"""Requests as the engine would make them, without an engine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tandem import SamplingParams
from tandem.request import Banned, Request

_ids = itertools.count()


def make_request(
    prompt: Sequence[int],
    output: Sequence[int] = (),
    *,
    max_total: int = 1000,
    stop_ids: Sequence[int] = (),
    banned: Sequence[Sequence[int]] = (),
    seed: int | None = None,
    **params: Any,
) -> Request:
    """A request that has already written `output`; other names are sampling parameters."""
    if banned:
        params["bad_words"] = ["spelled as in `banned`"]
    return Request(
        id=f"r{next(_ids)}",
        tokens=[*prompt, *output],
        num_prompt=len(prompt),
        params=SamplingParams(**params),
        seed=seed,
        max_total=max_total,
        stop_ids=frozenset(stop_ids),
        banned=Banned(banned),
    )
