"""What a mixture remembers of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tandem.drafting import Verdict
from tandem.drafting.costs import Load
from tandem.drafting.gains import Gains, Records
from tandem.drafting.lengths import Option, Outlook
from tandem.drafting.parts import Part

PLANNED_FOR = 8  # rounds that first outlooks hold, and...
ALL_FADES = 256  # rounds, behind which nothing counts any more
ALIKE = 0.75  # times as many requests
LOOKS = 2  # requests a round, that are learnt from where a model drafts for all
MOST_PLANNED_FOR = 32  # ... later ones: what they rest on changes ever more slowly
IDLE_FOR = 4  # times as many rounds as drafts, that none are planned for: nothing is learnt then
NOBODY = Load(0)


def alike(batch: int, other: int) -> bool:
    """Whether what holds for so many requests holds for so many others."""
    return ALIKE * max(batch, other) <= min(batch, other)


def looks_apart(batch: int) -> int:
    """Rounds from one look at what a request's drafts by a model have become to the next: all that
    is done for requests grows with their number, but what is learnt in a round need not."""
    return -(-batch // LOOKS)


def held(rounds: int, apart: int) -> int:
    """Rounds that hold what is planned for so many, where there are so many from one look at a
    request to the next."""
    return min(MOST_PLANNED_FOR, max(rounds, PLANNED_FOR * apart))


class Choice(NamedTuple):
    """The method that should gain most for a request."""

    place: int
    """Among the methods, the one that guesses with a model last."""
    option: Option
    length: int
    """Best for this request, if the whole batch did the same, and..."""
    rate: float
    """... the tokens a second that it should yield then."""


@dataclass(slots=True)
class Known:
    """Of a request."""

    gains: list[Records]
    """What was learnt of its drafts, by method."""
    only: int | None = None
    """The one method that may draft for it; None: any."""
    found: list[Part] = field(default_factory=list)
    """What each lookup found for it in this round."""
    taken: int = 0
    """The method whose draft is verified in this round."""
    outlooks: dict[tuple[int, int], Outlook] = field(default_factory=dict)
    """What drafts should be worth to it, by method and size of the draft (`Gains.size`), ..."""
    choices: dict[tuple[int, ...], Choice] = field(default_factory=dict)
    """... what follows from it, by lookahead and the lengths of what was found, ..."""
    load: Load = NOBODY
    """... for a batch of these, ..."""
    until: int = 0
    """... and the round when it is worked out anew; ..."""
    rounds: int = PLANNED_FOR
    """... the next time it will hold for so many."""
    begun: int = 0
    """The round up to which the model's drafts have faded, and..."""
    drafts: int = 0
    """... how many there were since then."""
    planned: int = 0
    """The round in which the agenda was made that it is part of, ..."""
    room: int = 0
    """... its lookahead when it became so, and..."""
    wish: int = 0
    """... tokens that the model is to draft for it, where there is room."""

    def begin(self, load: Load, now: int, apart: int) -> None:
        """Anew in this round. apart: as in `held`."""
        self.outlooks, self.choices = {}, {}
        self.load, self.until = load, now + held(self.rounds, apart)
        self.rounds = min(2 * self.rounds, MOST_PLANNED_FOR)

    def fade(self, now: int) -> None:
        """What is known of the model's drafts counts for less behind rounds without one."""
        idle = min(now - self.begun - self.drafts, ALL_FADES)
        if self.begun and idle > 0:
            Gains.fade(self.gains[-1], idle)
        self.begun, self.drafts = now, 0


class Judged(NamedTuple):
    """One request's drafts of a round, and what became of them."""

    known: Known
    found: list[Part]
    taken: int
    drafted: int
    verdict: Verdict
    noise: int
    """How the request's tokens are drawn."""
    asked: int
    """Tokens that the model was asked for."""
    sure: Sequence[float]
    """As in `Draft`, of the model."""
