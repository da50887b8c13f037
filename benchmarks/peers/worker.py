"""The process of a peer: it loads one engine and generates greedily, a line of JSON at a time.

Only the standard library is imported here, for every peer's interpreter runs it. The first argument
is the `Case`; the first line written says the engine's version, and each line read,
`{"prompts": [[ids]], "new_tokens": N}`, is answered by an `Answer` and its seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Case(NamedTuple):
    """What a peer is to run."""

    target: str
    """Checkpoint folder, in the peer's format."""
    draft: str
    method: str
    """`none`, `draft_model`, `ngram`, or another that the peer knows."""
    tokens: int
    """Most drafted in a round."""
    threads: int
    most: int
    """Prompts at once."""


class Answer(NamedTuple):
    """What was generated, and how the drafts fared where the peer tells."""

    ids: list[list[int]]
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0


Prompts = list[list[int]]
Generate = Callable[[Prompts, int], Answer]


def computes_in_bfloat16() -> bool:
    """Whether the processor does; elsewhere bfloat16 is emulated, and slower than float32."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return "avx512_bf16" in flags or "amx_bf16" in flags


def serve(version: Callable[[], str], load: Callable[[Case], Generate]) -> None:
    """Runs until the input ends."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # what libraries print goes to the log

        def tell(values: dict[str, Any]) -> None:
            answers.write(json.dumps(values) + "\n")
            answers.flush()

        generate = load(Case(*json.loads(sys.argv[1])))
        tell({"version": version()})
        for line in sys.stdin:
            request = json.loads(line)
            start = time.perf_counter()
            answer = generate(request["prompts"], request["new_tokens"])
            tell({"seconds": time.perf_counter() - start, "answer": answer})
