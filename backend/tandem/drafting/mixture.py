"""Several methods side by side: for each request and step the one that should gain most proposes.

Lookups (n-gram, suffix) guess from the text alone, and cost little: they are all asked, and judged
by what the text became, whether or not their draft was taken; where what they find does not save as
much as that takes, there are pauses (`resting`), in which it is as if there were none. Where none
of theirs should yield as many tokens a second as the method that guesses with a model, the model
drafts. How far each draft reaches is decided for the whole batch (`lengths`).

Now and then a model that is not expected to pay is tried again, within a small share of the time.
For a request that names one of the methods no other drafts.

What is expected of a method comes from how its earlier drafts fared, and its time from earlier
rounds: nothing that is drawn in this round decides whether it is drafted or verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from torch import Tensor

from tandem.drafting import Computed, Draft, Proposer, Verdict
from tandem.drafting.agenda import NO_PLANS, Agenda, found_parts
from tandem.drafting.choosing import KEEPING, MARGIN, Chooser, Method
from tandem.drafting.costs import Load, RoundCosts
from tandem.drafting.drafter import Drafter
from tandem.drafting.gains import Records
from tandem.drafting.lengths import Plan
from tandem.drafting.lookups import Lookups
from tandem.drafting.parts import NOTHING, Part, joined
from tandem.drafting.remembered import (
    IDLE_FOR,
    PLANNED_FOR,
    Choice,
    Judged,
    Known,
    held,
    longer,
)
from tandem.drafting.resting import Naps, Rests
from tandem.drafting.sparing import Sparing
from tandem.drafting.stopwatch import Begun, Stopwatch
from tandem.request import Notes, Request
from tandem.scheduler import Decode, StepPlan
from tandem.verification.sampler import noise_of

NO_DRAFT = Draft([])


def _load_of(decodes: Sequence[Decode]) -> Load:
    return Load(len(decodes), sum([decode.request.computed for decode in decodes]))


class MixtureProposer(Proposer):
    """Asks lookups first, then the one method that guesses with a model, if there is one."""

    def __init__(
        self,
        methods: Sequence[Method],
        longest: int,
        costs: RoundCosts,
        shares_prefixes: bool = True,
        most_requests: int = 1,
        may_spare: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """longest: most tokens of a draft. shares_prefixes, most_requests: as in `HeldStates`;
        may_spare: as in `Sparing`."""
        self.lookups = Lookups([method for method in methods if method.is_lookup])
        self.model = next((method for method in methods if not method.is_lookup), None)
        self.taps = self.model.proposer.taps if self.model else None
        self.costs = costs
        self.longest = longest
        self._methods = [*self.lookups.methods, *([self.model] if self.model else [])]
        self.watch = Stopwatch(costs, clock)
        self._drafter = None
        if self.model is not None:
            proposer, place = self.model.proposer, len(self.lookups.methods)
            sparing = Sparing(may_spare)
            self._drafter = Drafter(
                proposer, place, self.watch, shares_prefixes, most_requests, sparing
            )
        unread = self._drafter.unread if self._drafter else lambda request: 0
        margin = KEEPING if may_spare and self.taps is not None else MARGIN
        self._chooser = Chooser(self._methods, longest, costs, unread, margin)
        self._rests = Rests()
        self._naps = Naps()
        self._asked: Sequence[Known] = ()
        """For whom a method was asked for a draft in the round under way, and..."""
        self._sure: Sequence[Sequence[float]] = ()
        """... what the model was sure of, as in `Draft`."""
        self._requests = Notes[Known]()
        self._agenda: Agenda | None = None
        self._plans = NO_PLANS
        self._rounds = 0
        self._round: Begun | None = None

    # -- drafting ------------------------------------------------------------------------------

    def propose(self, decodes: Sequence[Decode], alone: bool = False) -> Draft:
        self._round, self._asked, self._sure = None, (), ()
        if not decodes:
            self._agenda = None  # nothing is kept of requests that have gone
            return Draft([])
        self._rounds += 1
        self.lookups.begin(self._rounds, decodes)
        asking = self.lookups.asked
        if self._naps_for(decodes):
            assert self._agenda is not None and self._agenda.idle is not None
            return self._agenda.idle
        before = self._agenda
        agenda = self._agenda = self._asking(decodes) if asking else self._agenda_of(decodes)
        planned = any(agenda.asked)
        resting = planned and self._rests.due(self._rounds, agenda.promised)
        by_model = agenda.probing or (planned and not resting)
        # (a model's draft between lookups' would come behind a round that was not timed)
        by_lookups = asking and self.model is None
        settled = before is not None and (by_lookups or agenda.made == before.made)
        napping = settled and (by_model or by_lookups) and self._naps.due(by_model)
        # what lookups draft for others would have to be verified in the same launch
        alone = alone and not asking
        draft = self._carry_out(agenda, by_model, resting, alone, timed=not napping)
        if by_model or asking:
            self._asked = agenda.requests
        return draft if napping else self._timed(decodes, draft, by_model)

    def _timed(self, decodes: Sequence[Decode], draft: Draft, by_model: bool) -> Draft:
        """The draft, in a round by which is learnt what rounds take."""
        rows = len(decodes) + sum([len(tokens) for tokens in draft.tokens])
        follows, first, agenda = self._naps.woke(), decodes[0].request.id, self._agenda
        if agenda is not None and agenda.idle is not None and agenda.made == self._rounds:
            # a plan that holds so long is not what such rounds take
            follows = follows and self.lookups.asked
        took = self.lookups.took
        self._round = Begun(_load_of(decodes), first, by_model, rows, follows, took)
        return draft

    @property
    def may_draft(self) -> bool:
        agenda = self._agenda
        if agenda is None or agenda.idle is None or not agenda.most:
            return True  # where there was no room, it shows when there is some again
        coming = self._rounds + 1
        plans = coming >= agenda.until or self.lookups.may_be_asked(coming)
        return plans or not self._naps.ahead(drafting=False)

    def keeps_states(self, running: int, waiting: int) -> bool:
        if self.taps is None or self._drafter is None:
            return True
        sparing = self._drafter.sparing
        sparing.look(self._rounds + 1, running, waiting, self._model_pays)
        return not sparing.spares

    def _model_pays(self) -> bool:
        """Whether its drafts should, for requests as in the last round, if there was one."""
        if self._agenda is None:
            return True
        decodes = self._agenda.decodes
        return self._chooser.pays([decode.request for decode in decodes], _load_of(decodes))

    def taps_of(self, plan: StepPlan) -> tuple[int, ...] | None:
        if self._drafter is None:
            return None
        agenda = self._agenda
        if self._drafter.sparing.spares and agenda is not None and any(agenda.asked):
            self._agenda = None  # it cannot draft so any more
        return self._drafter.taps_of(plan)

    def _naps_for(self, decodes: Sequence[Decode]) -> bool:
        """Whether this is one of the rounds without drafts that are as those before. The last one
        before others are planned is not, or of a draft that is tried behind it nothing would be
        learnt (`Stopwatch`)."""
        agenda = self._agenda
        if self.lookups.asked or agenda is None or self._rounds >= agenda.until - 1:
            return False
        return agenda.idles_on(decodes) and self._naps.due(drafting=False)

    def passed(self, rows: int, seconds: float) -> None:
        begun = self._round
        if begun is None:
            self.costs.elapse(seconds)
            return
        shows = self.watch.ended(begun, rows, seconds)
        self._naps.timed(begun.by_model, shows)
        if shows and not begun.by_model:
            self._rests.shown(self._rounds)

    def _agenda_of(self, decodes: Sequence[Decode]) -> Agenda:
        """Of a round in which lookups are not asked."""
        agenda = self._agenda
        if agenda is None:
            return self._make_agenda(decodes, PLANNED_FOR)
        if self._rounds < agenda.until:
            return self._carried_on(agenda, decodes) or self._make_agenda(decodes, PLANNED_FOR)
        rounds = longer(agenda.rounds) if agenda.is_for(decodes) else PLANNED_FOR
        return self._make_agenda(decodes, rounds)

    def _carried_on(self, agenda: Agenda, decodes: Sequence[Decode]) -> Agenda | None:
        """For these; None where it does not hold."""
        if agenda.idle is not None:
            return agenda.idle_for(decodes, self._rounds)
        return agenda.carried_on(decodes, self._rounds, self._joined)

    def _joined(self, decodes: Sequence[Decode], came: Decode) -> tuple[Known, Choice]:
        """What is known of a request that has come to others, and its method."""
        known = self._known(came.request)
        return known, self._chooser.choose(came, known, _load_of(decodes), self._rounds)

    def _asking(self, decodes: Sequence[Decode]) -> Agenda:
        """The agenda of a round in which lookups are; whether that pays is learnt."""
        began = self.watch.clock()
        if self.lookups.pauses.renews:
            for decode in decodes:
                self._known(decode.request).until = self._rounds
            self._chooser.learn(self._rounds)
        agenda = self._make_agenda(decodes, PLANNED_FOR)
        took = self.watch.clock() - began
        saves = agenda.saves(self._plans.without * self._plain_rate(_load_of(decodes)))
        self.lookups.end(self._rounds, decodes, saves, took)
        return agenda

    def _plain_rate(self, load: Load) -> float:
        """Tokens a second without drafts."""
        batch = load.requests
        return batch / self.costs.rounds(load, batch)[batch]

    def _make_agenda(self, decodes: Sequence[Decode], rounds: int) -> Agenda:
        """Holds for so many rounds; not where lookups are asked, whose finds change from one to the
        next."""
        requests = [self._known(decode.request) for decode in decodes]
        load = _load_of(decodes)
        self._renew_plans(decodes, requests, load)
        if self.lookups.asked:
            self.lookups.find(decodes, requests)
        choices = self._choose(decodes, requests, load)
        plan = self._plan(choices, load)
        further, gains = self._chooser.further(self.longest), list[float]()
        for decode, known, choice, length in zip(
            decodes, requests, choices, plan.lengths, strict=True
        ):
            known.taken = choice.place
            further.want(decode, known, choice, length)
            gains.append(sum(choice.option.gains[:length]))
        asked = [
            min(known.wish, one.lookahead) for one, known in zip(decodes, requests, strict=True)
        ]
        batch, wanted, worth, promised = len(decodes), any(asked), 0.0, 1.0
        if wanted:
            worth = self._chooser.worth(plan.rate, asked, load)
            promised = plan.rate / self._plain_rate(load)
        probing = not wanted and self._may_probe(decodes, requests)
        idle = None if probing or any(plan.lengths) else Draft([[] for _ in decodes])
        until = self._rounds
        if not self.lookups.asked:
            until += held(rounds, batch) if idle is None else IDLE_FOR * rounds
        return Agenda(
            list(decodes),
            requests,
            asked,
            found_parts(requests, choices, plan.lengths),
            plan,
            gains,
            further,
            worth,
            promised,
            probing,
            idle,
            batch,
            max([decode.lookahead for decode in decodes]),
            rounds,
            self._rounds,
            until,
        )

    def _renew_plans(
        self, decodes: Sequence[Decode], requests: Sequence[Known], load: Load
    ) -> None:
        """Where what is planned holds no longer. (None of these has been looked up yet.)"""
        batch, first = len(decodes), decodes[0].request.id
        asking = self.lookups.asked
        if asking and self._plans.hold(batch, first, self._rounds):
            return
        self.watch.learn()
        if not asking:
            self._plans = NO_PLANS._replace(known={})
            return
        rate = self._chooser.plan(self._choose(decodes, requests, load), load).rate
        without = rate / self._plain_rate(load)
        self._plans = self._plans.anew(batch, first, self._rounds, without)

    def _choose(
        self, decodes: Sequence[Decode], requests: Sequence[Known], load: Load
    ) -> list[Choice]:
        return [
            self._chooser.choose(decode, known, load, self._rounds)
            for decode, known in zip(decodes, requests, strict=True)
        ]

    def _may_probe(self, decodes: Sequence[Decode], requests: Sequence[Known]) -> bool:
        """Whether the model, which is not to draft, may be tried all the same."""
        if self._drafter is None or not self.costs.may_explore:
            return False
        return bool(self._drafter.able(decodes, requests))

    def _plan(self, choices: Sequence[Choice], load: Load) -> Plan:
        """Anew, but for what lookups found."""
        kind = sum([choice.option.by_model for choice in choices]).bit_length()
        known = self._plans.known.get(kind)
        plan = self._chooser.plan(choices, load, known)
        if known is None:
            self._plans.known[kind] = plan
        return plan

    def _carry_out(
        self, agenda: Agenda, by_model: bool, resting: bool, alone: bool, timed: bool
    ) -> Draft:
        """What is drafted. by_model: some of it by the model; resting: nothing; alone: as in
        `propose`."""
        if agenda.idle is not None:
            return agenda.idle
        parts, guessed = [NOTHING] * len(agenda.asked), NO_DRAFT
        asking = self.lookups.asked
        if asking and not resting:
            parts = list(agenda.parts)
        if by_model:
            assert self._drafter is not None
            if agenda.probing:
                self._agenda = None  # once
                guessed = self._drafter.probe(agenda, parts, alone, self._rounds)
            else:
                guessed = self._drafter.draft(agenda, parts, alone, self._rounds, timed)
            self._sure = guessed.sure or ()
            if not asking:  # nobody else's are among them
                return guessed
        drawn = None
        if guessed.q is not None:
            model = len(self.lookups.methods)
            drawn = [known.taken == model for known in agenda.requests]
        return joined(parts, guessed, drawn)

    def _known(self, request: Request) -> Known:
        known = self._requests.get(request)
        if known is None:
            names = [method.name for method in self._methods]
            asked = request.params.speculative_method
            only = names.index(asked) if asked in names else None
            gains: list[Records] = [{} for _ in self._methods]
            known = self._requests[request] = Known(gains, only, noise_of(request))
        known.found = self.lookups.nothing
        return known

    # -- learning ------------------------------------------------------------------------------

    def observe(self, decodes: Sequence[Decode], draft: Draft, verdicts: Sequence[Verdict]) -> None:
        if not self._asked:
            return
        requests, found, taken = self._asked, list[list[Part]](), list[int]()
        if self.lookups.asked:  # they find others in the next round
            found = [known.found for known in requests]
            taken = [known.taken for known in requests]
        asked = self._drafter.asked if self._drafter and self._sure else ()
        one = Judged(
            self._rounds, requests, found, taken, draft.tokens, verdicts, asked, self._sure
        )
        self._chooser.judged(one)
        if self._drafter is not None:
            self._drafter.observe(decodes, requests, draft, verdicts)

    def finished(self, request: Request) -> None:
        self._chooser.written(request)
        for method in self._methods:
            method.proposer.finished(request)

    def absorb(self, computed: Sequence[Computed], features: Tensor) -> None:
        assert self._drafter is not None
        self._drafter.absorb(computed, features)
