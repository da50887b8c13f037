"""What a mixture is to draft: planned for some rounds, in which requests come and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple

from tandem.drafting import Draft
from tandem.drafting.lengths import Plan
from tandem.drafting.parts import Part
from tandem.drafting.remembered import (
    IDLE_FOR,
    MOST_PLANNED_FOR,
    PLANNED_FOR,
    Choice,
    Known,
    alike,
    held,
)
from tandem.request import Request
from tandem.scheduler import Decode


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

    def of(self, length: int) -> int:
        """Of a draft for which so many tokens are planned."""
        return min(ceil(self.times * length), self.longest)


class Agenda(NamedTuple):
    """What is to be drafted in some rounds. What these are to the requests stands in `Known`, so
    that in each round those that are there are gone through once."""

    decodes: list[Decode]
    """Of the last round, ..."""
    requests: list[Known]
    """... what is known of them, and..."""
    asked: list[int]
    """... tokens that the model is to draft for each, at most."""
    known: dict[Request, Known]
    """Of all for whom it was made or who have come since."""
    parts: list[Part]
    """What lookups are to draft for each, where there are any: it holds for one round."""
    plan: Plan
    """As it was made."""
    gains: list[float]
    """Tokens that it should gain for each, when it was made."""
    further: Further
    worth: float
    """Chance of being kept, from which one of the model's tokens pays."""
    promised: float
    """Times the rate of no drafts."""
    probing: bool
    """The model, which is not to draft, is tried all the same."""
    idle: Draft | None
    """Where nothing is drafted."""
    batch: int
    """Requests when it was made, and..."""
    most: int
    """... the largest of their lookaheads."""
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
        return (self.promised - 1) * (self.batch + sum(self.gains)) / self.plan.rate

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
            and decodes[0].lookahead <= self.most
        )

    def idle_for(self, decodes: Sequence[Decode], now: int) -> Agenda | None:
        """For these, none of whom is to draft; None where nobody is left, they are far more or
        fewer, or one has more room than any had. now: this round. For who has come this holds no
        longer than one that is made for it."""
        most = max([one.lookahead for one in decodes])
        if most > self.most or not alike(self.batch, len(decodes)):
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
        self,
        decodes: Sequence[Decode],
        now: int,
        known_of: Callable[[Request], Known],
        choose: Callable[[Decode, Known], Choice],
    ) -> Agenda | None:
        """The same where some requests have gone, others have come, or they have other room for
        drafts, as they do near their ends; None where nobody is left, far more or fewer than it was
        made for are there with some that have come, or one has more room. (Where one of few goes,
        the next mostly comes a round later, and then they are as many as before.) now: this round;
        choose: for those that have come."""
        if decodes == self.decodes:
            return self
        came = [one for one in decodes if one.request not in self.known]
        others = not alike(self.batch, len(decodes))
        if len(came) == len(decodes) or (came and others):
            return None
        for one in came:
            known = self.known[one.request] = known_of(one.request)
            self._join(one, known, choose(one, known))
        requests = [self.known[one.request] for one in decodes]
        both = list(zip(decodes, requests, strict=True))
        if any(one.lookahead > known.room for one, known in both):
            return None
        asked = [min(known.wish, one.lookahead) for one, known in both]
        rest = self._replace(decodes=list(decodes), requests=requests, asked=asked)
        if not (came or others):
            return rest
        until = min(self.until, now + held(PLANNED_FOR, self.batch))
        return rest._replace(rounds=PLANNED_FOR // 2, until=until)

    def _join(self, decode: Decode, known: Known, choice: Choice) -> None:
        """One that has come."""
        by_model, length = choice.option.by_model, self.plan.joined(choice.option)
        wish = self.further.of(length) if by_model else 0
        known.room, known.wish = decode.lookahead, wish
