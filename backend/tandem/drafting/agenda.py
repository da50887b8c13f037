"""What a mixture is to draft: planned for some rounds, in which requests come and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tandem.drafting import Draft
from tandem.drafting.asking import NO_ASKS, NO_BRIM, NO_FURTHER, Asks, Further, wanted
from tandem.drafting.lengths import Plan
from tandem.drafting.parts import NOTHING, Part
from tandem.drafting.remembered import (
    IDLE_FOR,
    LONGER,
    PLANNED_FOR,
    Choice,
    Known,
    alike,
    held,
    longer,
)
from tandem.scheduler import Decode


class Plans(NamedTuple):
    """For the rounds to come, by how many requests the model is chosen for, by powers of two: what
    lookups find changes that from one round to the next."""

    batch: int
    """Requests, when the first was made, ..."""
    first: str
    """... and the first of them."""
    rounds: int
    """For so many they hold, ..."""
    until: int
    """... until this one."""
    known: dict[int, Plan]
    without: float = 0.0
    """The rate that a step should have if no lookup were asked, as a multiple of none's, ..."""
    plain: float = 0.0
    """... which was this."""

    def hold(self, batch: int, first: str, now: int) -> bool:
        """Whether they are for so many requests in this round; for one alone, only if it is the
        same. first: of these."""
        if now >= self.until or (batch == 1 and first != self.first):
            return False
        return batch == self.batch or alike(self.batch, batch)

    def anew(self, batch: int, first: str, now: int, without: float, plain: float) -> Plans:
        """None yet, for so many requests, from this round on."""
        again = alike(self.batch, batch)
        rounds = longer(self.rounds) if again else PLANNED_FOR
        return Plans(batch, first, rounds, now + rounds, {}, without, plain)


NO_PLANS = Plans(0, "", 0, 0, {})


class Turn(NamedTuple):
    """A round for whose requests what was planned may not hold."""

    decodes: Sequence[Decode]
    now: int
    """The round."""
    alone: bool
    """Nobody reads his prompt in it, to be one of them soon."""
    join: Callable[[Decode], tuple[Known, Choice]]
    """What is known of one that has come, and its method."""


class Agenda(NamedTuple):
    """What is to be drafted in some rounds. What is wanted for a request stands in its `Known`, so
    that little is gathered anew in each."""

    decodes: list[Decode]
    """Of the last round, ..."""
    requests: list[Known]
    """... what is known of them, ..."""
    parts: list[Part]
    """... and what lookups are to draft for each, where they were asked: it holds for one round."""
    plan: Plan
    """As it was made."""
    gains: list[float]
    """Tokens that it should gain for each, when it was made."""
    made: int
    """In this round."""
    asks: Asks = NO_ASKS
    """Of the model, if there is one."""
    brim: int = NO_BRIM
    """Rows that the pass is to have at most, where one more would take far longer."""
    by_model: bool = False
    """Whether it is to draft any."""
    further: Further = NO_FURTHER
    far: int = 0
    """Tokens that it is to draft, at least, for those it drafts for who are on a streak."""
    worth: float = 0.0
    """Chance of being kept, from which one of the model's tokens pays."""
    promised: float = 1.0
    """Times the rate of no drafts."""
    saved: float = 0.0
    """Share of the time that the model's drafts should save, for those that it may draft for."""
    probing: bool = False
    """The model, which is not to draft, is tried all the same, ..."""
    took: float = 0.0
    """... for which it took so many seconds to plan."""
    idle: Draft | None = None
    """Where nothing is drafted."""
    may_try: bool = False
    """Whether a model, if there is one, could draft for some of them all the same."""
    passing: bool = False
    """Whether they are far more or fewer than it was made for, but somebody reads his prompt: it is
    looked at again in the next round."""
    batch: int = 0
    """Requests when it was made, and..."""
    most: int = 0
    """... the largest of their lookaheads."""
    rounds: int = PLANNED_FOR
    """For so many it holds, ..."""
    until: int = 0
    """... until this one."""

    def holds(self, decodes: Sequence[Decode], now: int) -> bool:
        """Whether it is for these in the round `now`, as it is: where they have no less room than
        is asked for, and no more than they had."""
        if now >= self.until or self.passing:
            return False
        if self.idle is not None:
            return self.idles_on(decodes) and self.is_for(decodes)
        if decodes == self.decodes:
            return True
        if not (self.by_model and self.is_for(decodes)):
            return False
        rooms = zip(self.asks.lengths, decodes, self.decodes, strict=True)
        return all(asked <= one.lookahead <= mine.lookahead for asked, one, mine in rooms)

    def saves(self, rate: float) -> float:
        """Seconds that it should take less than at this rate, in tokens a second, for as many
        tokens."""
        if not any(self.plan.lengths):
            return 0.0
        return (len(self.decodes) + sum(self.gains)) * (1 / rate - 1 / self.plan.rate)

    def is_for(self, decodes: Sequence[Decode]) -> bool:
        """Whether these are the same requests."""
        return [one.request for one in self.decodes] == [one.request for one in decodes]

    def goes_on(self, decodes: Sequence[Decode], by_model: bool) -> bool:
        """Whether the next one, in which the model is to draft or not, is as this: what is idle
        holds for who comes, too."""
        if self.by_model or by_model:
            return self.by_model and by_model and self.is_for(decodes)
        return alike(self.batch, len(decodes))

    def idles_on(self, decodes: Sequence[Decode]) -> bool:
        """Whether nothing is drafted for these either, as nothing was: who comes is the last, who
        goes leaves fewer, and nobody has more room."""
        mine = self.decodes
        return (
            not self.passing
            and len(decodes) == len(mine)
            and decodes[-1].request is mine[-1].request
            and decodes[0].request is mine[0].request
            and max([one.lookahead for one in decodes]) <= self.most
        )

    def idle_for(self, turn: Turn) -> Agenda | None:
        """For these, none of whom is to draft; None where they are far more or fewer for longer
        than somebody reads his prompt, one has more room than any had, or all are new and one
        of them should draft: but where there is no room in this round, it goes on in it. Where one
        should draft who comes to others, this holds no longer than one that is made for him."""
        room = max([one.lookahead for one in turn.decodes])
        if room > self.most:
            return None
        others, came = not alike(self.batch, len(turn.decodes)), self._came(turn.decodes)
        all_new, until = len(came) == len(turn.decodes), turn.now + PLANNED_FOR * IDLE_FOR
        asks = all_new or self.until > until
        pays = asks and any(self._should_draft(one, turn) for one in came)
        rest = self._replace(
            decodes=list(turn.decodes),
            idle=Draft([[] for _ in turn.decodes]),
            may_try=self.may_try or any(not one.request.states_lost for one in came),
            passing=others,
        )
        if (others and turn.alone) or (all_new and pays):
            return None if room else rest._until(turn.now + 1)  # then there is some
        return rest._until(until) if pays else rest

    def _came(self, decodes: Sequence[Decode]) -> list[Decode]:
        """Those that were not there before."""
        mine = {id(one.request) for one in self.decodes}
        return [one for one in decodes if id(one.request) not in mine]

    def _should_draft(self, came: Decode, turn: Turn) -> bool:
        """Where none is expected to, there may be no room for drafts in this round."""
        _, choice = turn.join(came._replace(lookahead=self.most))
        return any(choice.plan.lengths)

    def _until(self, until: int) -> Agenda:
        """The same up to this round, when the first of other plans is made."""
        return self._replace(until=until, rounds=PLANNED_FOR // LONGER)

    def of_nobody(self) -> Agenda | None:
        """Where all have gone: for who comes next, if nothing is drafted."""
        if self.idle is None:
            return None
        return self._replace(decodes=[], requests=[], parts=[], idle=Draft([]))

    def tried(self) -> Agenda:
        """Behind the round in which the model was."""
        return self._replace(probing=False, idle=Draft([[] for _ in self.decodes]), may_try=True)

    def carried_on(self, turn: Turn) -> Agenda | None:
        """The same where some requests have gone, others have come, or they have other room for
        drafts, as they do near their ends; None where nobody is left, far more or fewer than it was
        made for are there with some that have come, there are not rows enough for all of them, or
        one that took all the room there was has several tokens more, or any where it had none.
        (Where one of few goes, the next mostly comes a round later, and then they are as many as
        before.)"""
        decodes, came = turn.decodes, self._came(turn.decodes)
        others = not alike(self.batch, len(decodes))
        if len(came) == len(decodes) or (came and others):
            return None
        mine = {one.request: known for one, known in zip(self.decodes, self.requests, strict=True)}
        for one in came:
            known, choice = turn.join(one)
            self.further.want(one, known, choice, self.plan.joined(choice.option))
            mine[one.request] = known
        requests = list[Known]()
        for request, room in decodes:
            known = mine[request]
            more = room - known.room - (known.room > 0)  # (a budget is shared out by turns)
            if more > 0 and known.wish >= known.room:  # it was all that there was room for
                return None
            requests.append(known)
        if len(decodes) > self.batch:
            asks = wanted(decodes, requests, 0, NO_BRIM)
            if sum(asks.lengths) > self._room(decodes):
                return None
        rest = self._replace(
            decodes=list(decodes),
            requests=requests,
            passing=others and not turn.alone,
        ).asking()
        if not (came or (others and turn.alone)):
            return rest
        return rest._until(min(self.until, turn.now + held(PLANNED_FOR, self.batch)))

    def asking(self) -> Agenda:
        """The same, where what is wanted for some may have changed."""
        asks = wanted(self.decodes, self.requests, self.far, self._room(self.decodes))
        return self._replace(asks=asks, by_model=bool(asks.places))

    def _room(self, decodes: Sequence[Decode]) -> int:
        """For tokens of the model's drafts."""
        return max(0, self.brim - len(decodes))


def found_parts(
    requests: Sequence[Known], choices: Sequence[Choice], lengths: Sequence[int]
) -> list[Part]:
    """What lookups draft; nothing where the model is to."""
    return [
        known.found[choice.place].cut(length) if choice.place < len(known.found) else NOTHING
        for known, choice, length in zip(requests, choices, lengths, strict=True)
    ]
