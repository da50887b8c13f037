"""What a mixture remembers of requests and rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tandem.drafting import Verdict
from tandem.drafting.gains import Records
from tandem.drafting.lengths import Outlook
from tandem.drafting.parts import Part


@dataclass(slots=True)
class Known:
    """Of a request."""

    gains: dict[str, Records]
    """What was learnt of its drafts, by method."""
    found: dict[str, Part] = field(default_factory=dict)
    """What lookups found for it in this round."""
    taken: str = ""
    """Whose draft is verified in this round."""
    outlooks: dict[tuple[str, int], Outlook] = field(default_factory=dict)
    """What drafts should be worth to it, by method and size of the draft (`Gains.size`)..."""
    batch: int = 0
    """... where there are so many requests, ..."""
    until: int = 0
    """... and the round when they are worked out anew."""


@dataclass(slots=True)
class Round:
    """The last one."""

    first: str
    """Of its requests. Where it goes on in the next round, nothing was waited for in between."""
    rows: int = 0
    """Of the target's pass."""
    proposed_at: float = 0.0
    observed_at: float | None = None


class Judged(NamedTuple):
    """One request's drafts of a round, and what became of them."""

    known: Known
    found: dict[str, Part]
    taken: str
    drafted: int
    verdict: Verdict
