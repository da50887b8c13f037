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
from tandem.drafting.agenda import Agenda
from tandem.drafting.choosing import Method
from tandem.drafting.costs import RoundCosts
from tandem.drafting.drafter import Drafter
from tandem.drafting.lookups import Lookups
from tandem.drafting.parts import NOTHING, Part, joined
from tandem.drafting.planning import Planner, load_of
from tandem.drafting.remembered import PLANNED_FOR, Judged, Known, alike
from tandem.drafting.resting import Naps, Rests
from tandem.drafting.sparing import KEEPING, Sparing
from tandem.drafting.stopwatch import Begun, Stopwatch
from tandem.request import Request
from tandem.scheduler import Decode, StepPlan

NO_DRAFT = Draft([])
# Rounds that nap, one of which is learnt from, as behind a pass each line is slow: of lookups', and
# of those in which a model alone drafts.
TOLD_EVERY, MODEL_TOLD_EVERY = 2, 4


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
        self.planner = Planner(self._methods, self.lookups, longest, self.watch)
        if self.model is not None:
            self._drafter = Drafter(
                self.model.proposer,
                len(self.lookups.methods),
                self.watch,
                shares_prefixes,
                most_requests,
                Sparing(may_spare, self.model.proposer.reads_all),
                self.planner.reading,
            )
        self._rests = Rests()
        self._naps = Naps()
        self._asked: Sequence[Known] = ()
        """For whom a method was asked for a draft in the round under way, and..."""
        self._untold = 0
        """... how many there were that nap since one that did not: some are learnt from; and..."""
        self._sure: Sequence[Sequence[float]] = ()
        """... what the model was sure of, as in `Draft`."""
        self._agenda: Agenda | None = None
        self._coming: Agenda | None = None
        """The next one, if it has been worked out."""
        self._drafts: bool | None = None
        """Whether there may be drafts in the round under way; None: the model is tried."""
        self._rounds = 0
        self._sleeps_until = 0
        """Rounds before this one are as the last one, if they are for the same requests, and not
        timed."""
        self._round: Begun | None = None

    # -- drafting ------------------------------------------------------------------------------

    def propose(self, decodes: Sequence[Decode], alone: bool = False) -> Draft:
        if self._drafter is not None and self._drafter.turned:
            self._turn()
        if self._rounds + 1 < self._sleeps_until:
            draft = self._as_before(decodes, alone)
            if draft is not None:
                return draft
            self._wake()
        self._round, self._asked, self._sure = None, (), ()
        if not decodes:
            self._leave()
            return Draft([])
        now = self._rounds = self._rounds + 1
        if self.lookups.methods:
            self.lookups.begin(now, decodes)
        asking, before = self.lookups.asked, self._agenda
        self._agenda = agenda = self._agenda_for(before, decodes, now, alone)
        resting = agenda.by_model and self._rests.due(now, agenda.promised)
        by_model = agenda.probing or (agenda.by_model and not resting)
        # (a model's draft between lookups' would come behind a round that was not timed)
        by_lookups = asking and self.model is None
        settled = before is not None and (by_lookups or agenda.made == before.made)
        drafts, idles = by_model or by_lookups, self._idles_on(agenda)
        if idles and self._tries_soon(agenda):
            self._agenda, idles = agenda._replace(until=now + 1), False
        napping = settled and (drafts or idles) and self._naps.due(drafts)
        if napping:
            self._sleep(agenda)
        self._drafts = None if agenda.probing else drafts
        # what lookups draft for others would have to be verified in the same launch
        alone = alone and not asking
        draft = self._carry_out(agenda, by_model, resting, alone, timed=not napping)
        if by_model or asking:
            self._asked, self._untold = agenda.requests, self._untold + 1 if napping else 0
        return draft if napping else self._timed(decodes, draft, by_model)

    def _turn(self) -> None:
        """Somebody's streak has begun, or ended."""
        assert self._drafter is not None
        self._drafter.turned = False
        if self._agenda is not None and self._agenda.by_model:
            self._agenda = self._agenda.asking()
        if self._coming is not None and self._coming.by_model:
            self._coming = self._coming.asking()

    def _agenda_for(
        self, before: Agenda | None, decodes: Sequence[Decode], now: int, alone: bool
    ) -> Agenda:
        """Of the round `now`, behind one with that agenda, if any."""
        if self.lookups.asked:
            return self.planner.found(decodes, now)
        if before is not None and before.holds(decodes, now):
            return before
        agenda, self._coming = self._coming, None
        if agenda is None or agenda.made != now:
            agenda = self.planner.planned(before, decodes, now, alone)
        elif not agenda.holds(decodes, now):
            agenda = self.planner.planned(agenda, decodes, now, alone)
        if before is None or not alike(before.batch, agenda.batch):
            self._naps.begin_anew()
        return agenda

    def _leave(self) -> None:
        """Nobody decodes: nothing is kept of requests that have gone. (What nobody has looked up is
        looked at where one comes alone.)"""
        agenda, self._agenda, self._coming = self._agenda, None, None
        if agenda is not None and not self.lookups.methods:
            self._agenda = agenda.of_nobody()

    def _timed(self, decodes: Sequence[Decode], draft: Draft, by_model: bool) -> Draft:
        """The draft, in a round by which is learnt what rounds take."""
        rows = len(decodes) + sum([len(tokens) for tokens in draft.tokens])
        follows, first, agenda = self._naps.woke(), decodes[0].request.id, self._agenda
        if agenda is not None and agenda.idle is not None and agenda.made == self._rounds:
            # a plan that holds so long is not what such rounds take, but for a try
            follows = follows and (by_model or self.lookups.asked)
        took = self.lookups.took
        ahead = self._looks_ahead
        self._round = Begun(load_of(decodes), first, by_model, rows, follows, took, ahead)
        return draft

    @property
    def meanwhile(self) -> Callable[[], object] | None:
        return self._look_ahead if self._looks_ahead else None

    @property
    def _looks_ahead(self) -> bool:
        """Whether in this round the next ones are planned, by what was learnt before it. (Not where
        nothing is drafted: by such rounds is learnt what passes take, and one before a try is timed
        too.)"""
        agenda = self._agenda
        if agenda is None or self._rounds + 1 != agenda.until:
            return False
        return bool(agenda.by_model and self._drafts) and not self.lookups.methods

    def _look_ahead(self) -> None:
        assert self._agenda is not None
        self._coming = self.planner.make(self._agenda, self._agenda.decodes, self._rounds + 1)

    @property
    def may_draft(self) -> bool:
        agenda, coming = self._agenda, self._rounds + 1
        if agenda is None or agenda.idle is None or not agenda.most:
            return True  # where there was no room, it shows when there is some again
        if coming < self._sleeps_until:  # as below, which takes longer
            return False
        return coming >= self.lookups.silent_until(agenda.until)

    def keeps_states(self, running: int, waiting: int) -> bool:
        if self.taps is None or self._drafter is None:
            return True
        sparing = self._drafter.sparing
        sparing.look(self._rounds + 1, running, waiting, self._model_pays)
        return not sparing.spares

    def _model_pays(self) -> bool:
        """Whether its drafts should, for requests as in the last round, if there was one, beside
        what lookups find."""
        if self._agenda is None or not self._agenda.decodes:
            return True
        decodes = self._agenda.decodes
        requests = [decode.request for decode in decodes]
        promised = self.planner.chooser.promises(requests, load_of(decodes))
        return promised * (1 - KEEPING) > self.planner.found_rate

    def taps_of(self, plan: StepPlan) -> tuple[int, ...] | None:
        if self.taps is None:
            return None
        assert self._drafter is not None
        agenda = self._agenda
        if self._drafter.sparing.spares and agenda is not None and agenda.idle is None:
            self._agenda = None  # the head cannot draft so any more
        return self._drafter.taps_of(plan)

    def _sleep(self, agenda: Agenda) -> None:
        """The rounds to come need not be looked at: so many as are left of a nap, but none that may
        have to be timed, or in which lookups may be asked or the model may rest."""
        ends = self.lookups.silent_until(agenda.until - (agenda.idle is not None))
        if agenda.by_model:
            ends = self._rests.none_before(ends, agenda.promised)
        left = self._naps.rest(max(0, ends - self._rounds - 1))
        self._sleeps_until = self._rounds + 1 + left

    def _as_before(self, decodes: Sequence[Decode], alone: bool) -> Draft | None:
        """What is drafted in a round that is not looked at; None where it is of others."""
        agenda, now = self._agenda, self._rounds + 1
        if agenda is None:  # the head that drafted cannot any more
            return None
        if agenda.idle is not None:
            if not agenda.idles_on(decodes):
                return None
            self._rounds = now
            return agenda.idle
        if not agenda.holds(decodes, now):
            return None
        assert self._drafter is not None
        self._rounds, self._untold = now, self._untold + 1
        draft = self._drafter.again(agenda, alone)
        self._sure = draft.sure or ()
        return draft

    def _wake(self) -> None:
        """Before a sleep is over."""
        self._naps.broken_off(self._sleeps_until - self._rounds - 1)
        self._rests.broken_off(self._rounds)
        self._sleeps_until = 0

    def _idles_on(self, agenda: Agenda) -> bool:
        """Whether nothing is drafted in this round, nor in the next one: the last one before others
        are planned must be timed, or of a draft that is tried behind it nothing would be learnt
        (`Stopwatch`)."""
        if agenda.idle is None or self.lookups.asked:
            return False
        return self._rounds < agenda.until - 1

    def _tries_soon(self, agenda: Agenda) -> bool:
        """Whether the model is to be tried in the next round, which ends what is planned."""
        if self.model is None or not (agenda.may_try and self.costs.may_explore):
            return False
        return self._rounds + 1 >= agenda.made + PLANNED_FOR

    def passed(self, rows: int, seconds: float) -> None:
        begun = self._round
        if begun is None:
            self.costs.elapse(seconds)
            return
        shows = self.watch.ended(begun, rows, seconds)
        if self._drafts is not None:
            self._naps.timed(self._drafts, shows)
        if shows and not begun.by_model and begun.rows == begun.load.requests:
            self._rests.shown(self._rounds)

    def _carry_out(
        self, agenda: Agenda, by_model: bool, resting: bool, alone: bool, timed: bool
    ) -> Draft:
        """What is drafted. by_model: some of it by the model; resting: nothing; alone: as in
        `propose`."""
        if agenda.idle is not None:
            return agenda.idle
        parts, guessed = [NOTHING] * len(agenda.requests), NO_DRAFT
        asking = self.lookups.asked
        if asking and not resting:
            parts = list(agenda.parts)
        if by_model:
            assert self._drafter is not None
            if agenda.probing:
                self._agenda = None if asking else agenda.tried()
                guessed = self._drafter.probe(agenda, parts, alone)
            else:
                guessed = self._drafter.draft(agenda, parts, alone, timed, self._rounds, asking)
            self._sure = guessed.sure or ()
            if not asking:  # nobody else's are among them
                return guessed
        drawn = None
        if guessed.q is not None:
            model = len(self.lookups.methods)
            drawn = [known.taken == model for known in agenda.requests]
        return joined(parts, guessed, drawn)

    # -- learning ------------------------------------------------------------------------------

    def observe(self, decodes: Sequence[Decode], draft: Draft, verdicts: Sequence[Verdict]) -> None:
        if not self._asked:
            return
        requests, found, taken = self._asked, list[list[Part]](), list[int]()
        asking, drafter = self.lookups.asked, self._drafter
        if drafter is not None:
            drafter.observe(decodes, requests, draft, verdicts, asking)
        if self._untold % (TOLD_EVERY if asking else MODEL_TOLD_EVERY):
            return
        if asking:  # they find others in the next round
            found = [known.found for known in requests]
            taken = [known.taken for known in requests]
        one = Judged(
            self._rounds,
            requests,
            found,
            taken,
            draft.tokens,
            verdicts,
            drafter.asked if drafter else (),
            drafter.streaks if drafter else (),
            self._sure,
            tried=self._drafts is None,
        )
        self.planner.chooser.judged(one)

    def finished(self, request: Request) -> None:
        self.planner.chooser.written(request)
        for method in self._methods:
            method.proposer.finished(request)

    def absorb(self, computed: Sequence[Computed], features: Tensor) -> None:
        assert self._drafter is not None
        self._drafter.absorb(computed, features)
