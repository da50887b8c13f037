"""What a mixture is to draft, worked out: for some rounds, or in each where lookups are asked."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.drafting import Draft
from tandem.drafting.agenda import NO_PLANS, Agenda, Turn, found_parts
from tandem.drafting.asking import NO_BRIM, wanted
from tandem.drafting.between import averaged
from tandem.drafting.choosing import Chooser, Method
from tandem.drafting.costs import Load
from tandem.drafting.drafter import able
from tandem.drafting.first_plans import FirstPlans, Likeness
from tandem.drafting.gains import Records
from tandem.drafting.lengths import GENTLE, Plan, brim
from tandem.drafting.lookups import Lookups
from tandem.drafting.reading import Reading
from tandem.drafting.remembered import (
    IDLE_FOR,
    MOST_IDLE,
    PLANNED_FOR,
    Choice,
    Known,
    held,
    longer,
)
from tandem.drafting.stopwatch import Stopwatch
from tandem.request import Notes, Request
from tandem.scheduler import Decode
from tandem.verification.sampler import noise_of

FOUND_MEMORY = 0.98  # of what lookups' drafts should yield, behind a round with others


def load_of(decodes: Sequence[Decode]) -> Load:
    return Load(len(decodes), sum([decode.request.computed for decode in decodes]))


def _without_model(choice: Choice) -> float:
    """Tokens a second of one request."""
    return choice.others if choice.option.by_model else choice.plan.rate


class Planner:
    """Makes agendas."""

    def __init__(
        self, methods: Sequence[Method], lookups: Lookups, longest: int, watch: Stopwatch
    ) -> None:
        """methods: lookups, and then the model, if there is one; longest: most tokens of a
        draft."""
        self.lookups = lookups
        self.watch = watch
        self._longest = longest
        self._methods = methods
        self._model = None if methods[-1].is_lookup else methods[-1]
        self.reading = Reading(self._model and self._model.proposer)
        self.chooser = Chooser(methods, longest, watch.costs, self.reading)
        self.requests = Notes[Known]()
        self.plans = NO_PLANS
        """Where lookups are asked."""
        self.first_plans = FirstPlans()
        self._found = 1.0
        """Times the rate of none, that lookups' drafts should yield of late, the model's aside."""

    def known(self, request: Request) -> Known:
        """What is known of a request, for which nothing was looked up in this round."""
        known = self.requests.get(request)
        if known is None:
            names = [method.name for method in self._methods]
            asked = request.params.speculative_method
            only = names.index(asked) if asked in names else None
            gains: list[Records] = [{} for _ in self._methods]
            known = self.requests[request] = Known(gains, only, noise_of(request))
        known.found = self.lookups.nothing
        return known

    @property
    def found_rate(self) -> float:
        """Times the rate of none, that lookups yield, if they are asked at present."""
        return self._found if self.lookups.asked else 1.0

    # -- rounds in which lookups are not asked -------------------------------------------------

    def planned(
        self, agenda: Agenda | None, decodes: Sequence[Decode], now: int, alone: bool
    ) -> Agenda:
        """Of the round `now`, behind one with this agenda, if any, which does not hold any more, or
        not for these. alone: as in `Turn`."""
        if agenda is None or now >= agenda.until:
            return self.make(agenda, decodes, now)

        load = load_of(decodes)

        def join(one: Decode) -> tuple[Known, Choice]:
            known = self.known(one.request)
            return known, self.chooser.choose(one, known, load, now)

        turn = Turn(decodes, now, alone, join)
        rest = agenda.carried_on(turn) if agenda.idle is None else agenda.idle_for(turn)
        return rest or self.make(None, decodes, now)

    def make(self, before: Agenda | None, decodes: Sequence[Decode], now: int) -> Agenda:
        """One for the round `now` and those to come: more of them, if it goes on as before."""
        began = self.watch.clock()
        self.plans = NO_PLANS
        requests, load = [self.known(one.request) for one in decodes], load_of(decodes)
        like = self._likeness(decodes, requests, now)
        if like is not None:
            first = self.first_plans.of(like, decodes[0], requests[0], now)
            if first is not None:
                return first
        self.watch.learn()
        choices = self._choose(decodes, requests, load, now)
        plan = self.chooser.plan(choices, load)
        agenda = self._agenda(decodes, requests, choices, plan, load, now)
        rounds = PLANNED_FOR
        if before is not None and before.goes_on(decodes, agenda.by_model):
            rounds = longer(before.rounds, MOST_IDLE)
        lasts = held(rounds, load.requests) if agenda.idle is None else IDLE_FOR * rounds
        if agenda.probing:
            agenda = agenda._replace(took=self.watch.clock() - began)
        if agenda.idle is not None:
            agenda = agenda._replace(may_try=bool(self._able(decodes, requests)))
        room = max([decode.lookahead for decode in decodes])
        agenda = agenda._replace(batch=load.requests, most=room, rounds=rounds, until=now + lasts)
        if load.requests == 1 and not agenda.by_model:
            self.first_plans.forget()
        elif like is not None:
            self.first_plans.keep(like, agenda)
        return agenda

    def _likeness(
        self, decodes: Sequence[Decode], requests: Sequence[Known], now: int
    ) -> Likeness | None:
        """Of a lone request of which nothing is known; None: there are more, or something is."""
        (one, *others), known = decodes, requests[0]
        if others or known.until or known.only is not None:
            return None
        return one.lookahead, known.noise, self.chooser.catching_up(one.request, known, now)

    # -- rounds in which they are --------------------------------------------------------------

    def found(self, decodes: Sequence[Decode], now: int) -> Agenda:
        """Of the round `now`, and of no other: what lookups find changes. Whether asking them pays
        is learnt."""
        began = self.watch.clock()
        requests, load = [self.known(one.request) for one in decodes], load_of(decodes)
        if self.lookups.pauses.renews:
            for known in requests:
                known.until = now
            self.chooser.learn(now)
        if not self.plans.hold(load.requests, decodes[0].request.id, now):
            self._renew_plans(decodes, requests, load, now)
        self.lookups.find(decodes, requests)
        choices = self._choose(decodes, requests, load, now, asking=True)
        plan = self._beside_finds(choices, load)
        agenda = self._agenda(decodes, requests, choices, plan, load, now)
        took = self.watch.clock() - began
        plain = self.plans.plain
        if load.requests != self.plans.batch:
            plain = self._plain_rate(load)
        if self._model is not None:
            found = sum([_without_model(choice) for choice in choices])
            self._found = averaged(self._found, found / plain, FOUND_MEMORY)
        self.lookups.end(now, decodes, agenda.saves(self.plans.without * plain), took)
        return agenda

    def _renew_plans(
        self, decodes: Sequence[Decode], requests: Sequence[Known], load: Load, now: int
    ) -> None:
        """Where what is planned holds no longer. (None of these has been looked up yet.)"""
        self.watch.learn()
        without = self.chooser.plan(self._choose(decodes, requests, load, now), load).rate
        first, plain = decodes[0].request.id, self._plain_rate(load)
        self.plans = self.plans.anew(load.requests, first, now, without / plain, plain)

    def _beside_finds(self, choices: Sequence[Choice], load: Load) -> Plan:
        """Anew, but for what lookups found."""
        if len(choices) == 1:
            return self.chooser.plan(choices, load)
        kind = sum([choice.option.by_model for choice in choices]).bit_length()
        known = self.plans.known.get(kind)
        plan = self.chooser.plan(choices, load, known)
        if known is None:
            self.plans.known[kind] = plan
        return plan

    # -- both ----------------------------------------------------------------------------------

    def _choose(
        self,
        decodes: Sequence[Decode],
        requests: Sequence[Known],
        load: Load,
        now: int,
        asking: bool = False,
    ) -> list[Choice]:
        return [
            self.chooser.choose(decode, known, load, now, asking)
            for decode, known in zip(decodes, requests, strict=True)
        ]

    def _agenda(
        self,
        decodes: Sequence[Decode],
        requests: list[Known],
        choices: Sequence[Choice],
        plan: Plan,
        load: Load,
        now: int,
    ) -> Agenda:
        """Of the round `now`."""
        gains = list[float]()
        for known, choice, length in zip(requests, choices, plan.lengths, strict=True):
            known.taken = choice.place
            gains.append(sum(choice.option.gains[:length]))
        agenda = Agenda(
            list(decodes), requests, found_parts(requests, choices, plan.lengths), plan, gains, now
        )
        if self._model is not None:
            agenda = self._with_model(agenda, choices, load)
        if agenda.probing or any(plan.lengths):
            return agenda
        return agenda._replace(idle=Draft([[] for _ in decodes]))

    def _with_model(self, agenda: Agenda, choices: Sequence[Choice], load: Load) -> Agenda:
        """What the model is asked for."""
        decodes, requests, plan = agenda.decodes, agenda.requests, agenda.plan
        further = self.chooser.further(self._longest)
        for one in zip(decodes, requests, choices, plan.lengths, strict=True):
            further.want(*one)
        asked = [
            min(known.wish, one.lookahead) for one, known in zip(decodes, requests, strict=True)
        ]
        if not any(asked):
            probing = self.watch.costs.may_explore and bool(self._able(decodes, requests))
            return agenda._replace(further=further, probing=probing)
        drafted = [min(one, length) for one, length in zip(asked, plan.lengths, strict=True)]
        far = self.chooser.far(plan.rate, drafted, load)
        furthest = [
            min(max(one, far), decode.lookahead)
            for one, decode in zip(asked, decodes, strict=True)
            if one
        ]
        last = self._brim(plan, sum(furthest) - sum(drafted), load)
        room = last - load.requests - sum(plan.lengths) + sum(drafted)
        saves = [one.saves for one, length in zip(choices, asked, strict=True) if length]
        return agenda._replace(
            further=further,
            asks=wanted(decodes, requests, far, room),
            far=far,
            brim=last,
            by_model=True,
            worth=self.chooser.worth(plan.rate, drafted, load),
            promised=plan.rate / self._plain_rate(load),
            saved=sum(saves) / len(self._able(decodes, requests)),
        )

    def _brim(self, plan: Plan, beyond: int, load: Load) -> int:
        """Most rows of a pass that is planned, where more are asked for beside."""
        planned = load.requests + sum(plan.lengths)
        most = planned + max(beyond, GENTLE)
        last = brim(self.watch.costs.rounds(load, most), planned, most)
        return NO_BRIM if last == most else last

    def _able(self, decodes: Sequence[Decode], requests: Sequence[Known]) -> list[int]:
        """For whom the model may draft."""
        return able(decodes, requests, len(self.lookups.methods))

    def _plain_rate(self, load: Load) -> float:
        """Tokens a second without drafts."""
        batch = load.requests
        return batch / self.watch.costs.rounds(load, batch)[batch]
