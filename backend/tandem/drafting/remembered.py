"""What a mixture remembers of requests."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import log2
from typing import NamedTuple

from tandem.drafting import Verdict
from tandem.drafting.costs import Load
from tandem.drafting.gains import Gains, Records
from tandem.drafting.lengths import Option, Outlook, Plan
from tandem.drafting.parts import Part
from tandem.verification.judging import GREEDY

PLANNED_FOR = 8  # rounds that first outlooks hold for few requests, ...
LONGER = 2  # ... times as many those behind them, and...
MOST_PLANNED_FOR = 32  # ... no more than so many: what they rest on changes ever more slowly
ALL_FADES = 256  # rounds, behind which nothing counts any more
ALIKE = 0.75  # times as many requests
IDLE_FOR = 4  # times as many rounds hold plans of no drafts: nothing is learnt then, and...
MOST_IDLE = 128  # ... these rounds grow on to so many
STREAK = 16  # tokens in rounds whose drafts were right throughout: more such ones mostly follow
NOBODY = Load(0)


def alike(batch: int, other: int) -> bool:
    """Whether what holds for so many requests holds for so many others."""
    return ALIKE * max(batch, other) <= min(batch, other)


def held(rounds: int, batch: int) -> int:
    """Rounds that hold what is planned for so many requests: making it takes longer for many."""
    return min(MOST_PLANNED_FOR, max(rounds, batch))


def longer(rounds: int, most: int = MOST_PLANNED_FOR) -> int:
    """Rounds that the next plan holds, at most, behind one that held for so many."""
    return min(LONGER * rounds, most)


def about(number: float) -> float:
    """The same, but for a tenth: few numbers stand for all."""
    return float(2.0 ** (round(4 * log2(number)) / 4))


class Choice(NamedTuple):
    """The method that should gain most for a request."""

    place: int
    """Among the methods, the one that guesses with a model last."""
    option: Option
    plan: Plan
    """Best for this request, if the whole batch did the same."""
    others: float
    """The tokens a second that the best of the methods before it should yield then, or none."""

    @property
    def saves(self) -> float:
        """Share of the others' time."""
        return 1 - self.others / self.plan.rate


@dataclass(slots=True)
class Known:
    """Of a request."""

    gains: list[Records]
    """What was learnt of its drafts, by method."""
    only: int | None = None
    """The one method that may draft for it; None: any."""
    noise: int = GREEDY
    """How its tokens are drawn."""
    found: list[Part] = field(default_factory=list)
    """What each lookup found for it in this round."""
    taken: int = 0
    """The method whose draft is verified in this round."""
    outlooks: dict[tuple[int, int, float], Outlook] = field(default_factory=dict)
    """What drafts should be worth to it, by method, size of the draft (`Gains.size`), and seconds
    a token in which the model catches up, ..."""
    choices: dict[tuple[float, ...], Choice] = field(default_factory=dict)
    """... what follows from it, by lookahead, this, and the lengths of what was found, ..."""
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
    room: int = 0
    """Its lookahead when it became part of the agenda, and..."""
    wish: int = 0
    """... tokens that the model is to draft for it, where there is room."""
    streak: int = 0
    """Tokens that were written in rounds with the model's drafts since one of these was wrong."""
    drafted: bool = False
    """Whether the model has drafted as it was planned, and..."""
    stay: int = 0
    """... tokens of such rounds since it had to read more than it does in passing."""
    tries: int = 0
    """Rounds in which the model was tried for it."""

    def drew(self, written: int, depth: int) -> bool:
        """The model has drafted so deep for it, as planned, and so many tokens were written.
        Whether a streak has begun or ended."""
        before, self.drafted = self.on_streak, True
        self.drafts += 1
        self.stay += written
        if depth:
            self.streak = self.streak + written if written > depth else 0
        return self.on_streak != before

    @property
    def on_streak(self) -> bool:
        """Whether the model is to draft further."""
        return self.streak >= STREAK

    def wants(self, far: int) -> int:
        """Tokens that the model is to draft for it; far: of who is on a streak, at least."""
        return max(self.wish, far) if self.wish and self.on_streak else self.wish

    def begin(self, load: Load, now: int) -> None:
        """Anew in this round."""
        self.outlooks, self.choices = {}, {}
        self.load, self.until = load, now + held(self.rounds, load.requests)
        self.rounds = longer(self.rounds)

    def fade(self, now: int) -> None:
        """What is known of the model's drafts counts for less behind rounds without one."""
        idle = min(now - self.begun - self.drafts, ALL_FADES)
        if self.begun and idle > 0:
            Gains.fade(self.gains[-1], idle)
        self.begun, self.drafts = now, 0


class Fared(NamedTuple):
    """How a draft of the model fared."""

    asked: int
    """Tokens."""
    drafted: int
    kept: Collection[int]
    """Places of those that were (1 is the first)."""
    beyond: Sequence[float] = ()
    """Chances that those behind them would have been kept, that the model was not sure enough
    of."""

    @property
    def whole(self) -> float:
        """Tokens that would have been kept, had it not ended by itself."""
        return len(self.kept) + sum(self.beyond) * (len(self.kept) == self.drafted)

    def upto(self, asked: int) -> Fared:
        """As if no more had been asked for than so many."""
        if asked >= self.asked:
            return self
        kept, left = [place for place in self.kept if place <= asked], max(0, asked - self.drafted)
        return Fared(asked, min(self.drafted, asked), kept, self.beyond[:left])


class Judged(NamedTuple):
    """A round's drafts, and what became of them."""

    now: int
    """The round."""
    requests: Sequence[Known]
    found: Sequence[list[Part]]
    """What lookups found for each; nothing where there are none."""
    taken: Sequence[int]
    """The method whose draft was verified, of each."""
    tokens: Sequence[list[int]]
    """Drafted, of each, ..."""
    verdicts: Sequence[Verdict]
    """... and what became of them."""
    asked: Sequence[int]
    """Tokens that the model was asked for, ..."""
    streaks: Sequence[int]
    """... as in `Asks`, and..."""
    sure: Sequence[Sequence[float]]
    """... what it was sure of, as in `Draft`; nothing where it does not look at that."""
    tried: bool = False
    """The model was tried, which drafts seldom."""

    def fared(self, place: int) -> Fared:
        """What became of the model's draft for one of them."""
        return Fared(self.asked[place], len(self.tokens[place]), self.verdicts[place].path)

    def drew(self, place: int, method: int) -> bool:
        """Whether this method drafted for one of them, or looked and was not sure enough."""
        if self.taken and self.taken[place] != method:
            return False
        return bool(self.tokens[place] or (self.sure and self.sure[place]))
