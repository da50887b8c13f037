"""What a mixture remembers of requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from tandem.drafting import Draft, Verdict
from tandem.drafting.costs import Load
from tandem.drafting.gains import Gains, Records
from tandem.drafting.lengths import Option, Outlook, Plan
from tandem.drafting.parts import Part
from tandem.scheduler import Decode

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


class Plans(NamedTuple):
    """For the rounds to come, by how many requests the model is chosen for, by powers of two: what
    lookups find changes that from one round to the next."""

    batch: int
    """Requests, when the first was made."""
    rounds: int
    """For so many they hold, ..."""
    until: int
    """... until this one."""
    known: dict[int, Plan]

    def hold(self, batch: int, now: int) -> bool:
        """Whether they are for so many requests in this round."""
        return now < self.until and alike(self.batch, batch)

    def anew(self, batch: int, now: int) -> Plans:
        """None yet, for so many requests, from this round on."""
        again = alike(self.batch, batch)
        rounds = min(2 * self.rounds, MOST_PLANNED_FOR) if again else PLANNED_FOR
        return Plans(batch, rounds, now + rounds, {})


class Further(NamedTuple):
    """How much further than planned a draft may go, where it ends by itself before tokens that do
    not pay."""

    times: float
    longest: int
    """Most tokens of a draft."""

    def of(self, length: int, room: int) -> int:
        """Of a draft for which so many tokens are planned."""
        return min(ceil(self.times * length), self.longest, room)


class Agenda(NamedTuple):
    """What is to be drafted in some rounds."""

    decodes: list[Decode]
    room: list[int]
    """Their lookaheads when it was made."""
    requests: list[Known]
    choices: list[Choice]
    plan: Plan
    asked: list[int]
    """Tokens that the model is to draft for each, at most."""
    further: Further
    worth: float
    """Chance of being kept, from which one of them pays."""
    promised: float
    """Times the rate of no drafts."""
    probing: bool
    """The model, which is not to draft, is tried all the same."""
    idle: Draft | None
    """Where nothing is drafted."""
    batch: int
    """Requests when it was made."""
    rounds: int
    """For so many it holds, ..."""
    made: int
    """... from this one..."""
    until: int
    """... until this one."""

    @property
    def saves(self) -> float:
        """Seconds of the round that it should take less than without drafts, for as many tokens."""
        if not any(self.plan.lengths):
            return 0.0
        taken = zip(self.choices, self.plan.lengths, strict=True)
        tokens = self.batch + sum([sum(one.option.gains[:length]) for one, length in taken])
        return (self.promised - 1) * tokens / self.plan.rate

    def holds_for(self, decodes: Sequence[Decode]) -> bool:
        """Whether it is just what these need: the same requests, none with more room, and each
        asked for what is planned, or for as much as there is room for."""
        if decodes == self.decodes:
            return True
        return len(decodes) == len(self.decodes) and all(
            one.request is known.request
            and asked == self.further.of(length, one.lookahead)
            and one.lookahead <= room
            for one, known, asked, length, room in zip(
                decodes, self.decodes, self.asked, self.plan.lengths, self.room, strict=True
            )
        )

    def is_for(self, decodes: Sequence[Decode]) -> bool:
        """Whether these are the same requests."""
        return [one.request for one in self.decodes] == [one.request for one in decodes]

    def idles_on(self, decodes: Sequence[Decode]) -> bool:
        """Whether nothing is drafted for these either: who comes is the last, who goes leaves
        fewer, and where there is room again the first has some."""
        mine = self.decodes
        return (
            self.idle is not None
            and len(decodes) == len(mine)
            and decodes[-1].request is mine[-1].request
            and decodes[0].request is mine[0].request
            and decodes[0].lookahead <= self.room[0]
        )

    def idle_for(self, decodes: Sequence[Decode], now: int) -> Agenda | None:
        """For these, none of whom is to draft; None where nobody is left, they are far more or
        fewer, or one has more room than any had. now: this round. For who has come this holds no
        longer than one that is made for it."""
        most = max([one.lookahead for one in decodes])
        if most > max(self.room) or not alike(self.batch, len(decodes)):
            return None
        if self.is_for(decodes):
            return self
        known = {id(one.request) for one in self.decodes}
        came = sum([id(one.request) not in known for one in decodes])
        if came == len(decodes):
            return None
        rest = self._replace(decodes=list(decodes), idle=Draft([[] for _ in decodes]))
        until = min(self.until, now + PLANNED_FOR * IDLE_FOR)
        return rest._replace(rounds=PLANNED_FOR // 2, until=until) if came else rest

    def carried_on(
        self, decodes: Sequence[Decode], now: int, join: Callable[[Decode], tuple[Known, Choice]]
    ) -> Agenda | None:
        """The same where some requests have gone, others have come, or they have other room for
        drafts, as they do near their ends; None where nobody is left, far more or fewer than it was
        made for are there with some that have come, or one has more room. (Where one of few goes,
        the next mostly comes a round later, and then they are as many as before.) now: this round;
        join: for those that have come."""
        room = {one.request: most for one, most in zip(self.decodes, self.room, strict=True)}
        came = [one for one in decodes if one.request not in room]
        if len(came) == len(decodes):
            return None
        if any(one.lookahead > room.get(one.request, one.lookahead) for one in decodes):
            return None
        others = not alike(self.batch, len(decodes))
        if came and others:
            return None
        if came or others:
            return self._joined_by(came, now, [join(one) for one in came])._of(decodes)
        return self._of(decodes)

    def _joined_by(self, came: list[Decode], now: int, known: list[tuple[Known, Choice]]) -> Agenda:
        """With these too, if any. It holds no longer than one that is made anew."""
        lengths = [self.plan.joined(choice.option) for _, choice in known]
        return self._replace(
            decodes=self.decodes + came,
            room=self.room + [one.lookahead for one in came],
            requests=self.requests + [one for one, _ in known],
            choices=self.choices + [choice for _, choice in known],
            plan=self.plan._replace(lengths=self.plan.lengths + lengths),
            rounds=PLANNED_FOR // 2,
            until=min(self.until, now + held(PLANNED_FOR, looks_apart(self.batch))),
        )

    def _of(self, decodes: Sequence[Decode]) -> Agenda:
        """For these alone."""
        places = {one.request: place for place, one in enumerate(self.decodes)}
        mine = [places[one.request] for one in decodes]
        lengths = [self.plan.lengths[place] for place in mine]
        choices = [self.choices[place] for place in mine]
        asked = [
            self.further.of(length, one.lookahead) if choice.option.by_model else 0
            for length, choice, one in zip(lengths, choices, decodes, strict=True)
        ]
        return self._replace(
            decodes=list(decodes),
            room=[self.room[place] for place in mine],
            requests=[self.requests[place] for place in mine],
            choices=choices,
            plan=self.plan._replace(lengths=lengths),
            asked=asked,
        )
