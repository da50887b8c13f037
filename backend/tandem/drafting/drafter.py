"""The model of a mixture at work: what it has to read, is asked for and drafts, timed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tandem.drafting import Computed, Draft, Proposer, Verdict
from tandem.drafting.agenda import Agenda
from tandem.drafting.asking import Asks, asks_of
from tandem.drafting.costs import READ_ALONG
from tandem.drafting.held import HeldStates
from tandem.drafting.parts import Part, part_of
from tandem.drafting.reading import Reading
from tandem.drafting.remembered import Known
from tandem.drafting.sparing import Sparing
from tandem.drafting.stopwatch import Stopwatch
from tandem.scheduler import Decode, StepPlan

PROBE = 2  # tokens of a draft that is not expected to pay


def able(decodes: Sequence[Decode], requests: Sequence[Known], model: int) -> list[int]:
    """For whom the model, which stands at this place among the methods, may draft."""
    return [
        place
        for place, (decode, known) in enumerate(zip(decodes, requests, strict=True))
        if decode.lookahead and known.only in (None, model) and not decode.request.states_lost
    ]


class Drafter:
    """Asks the one method that guesses with a model.

    What the target computes is shown to it when it is asked to draft, not before: where lookups do
    well it costs nothing.
    """

    def __init__(
        self,
        proposer: Proposer,
        place: int,
        watch: Stopwatch,
        shares_prefixes: bool,
        most_requests: int,
        sparing: Sparing,
        reading: Reading,
    ) -> None:
        """place: among the methods, behind all lookups; shares_prefixes, most_requests: as in
        `HeldStates`."""
        self.proposer = proposer
        self.place = place
        self.watch = watch
        self.asked: Sequence[int] = ()
        """Tokens for each request, in the last round in which it was asked for any, and..."""
        self.streaks: Sequence[int] = ()
        """... as in `Asks`."""
        self.turned = False
        """Whether since then somebody's streak has begun or ended."""
        self._mine: Sequence[int] = ()
        """For whom it drafts as planned in the round under way."""
        self.sparing = sparing
        self._reading = reading
        self.held: HeldStates | None = None  # where the model looks at tokens alone
        if proposer.taps is not None:
            self.held = HeldStates(proposer, shares_prefixes, most_requests)

    def draft(
        self,
        agenda: Agenda,
        parts: list[Part],
        alone: bool,
        timed: bool,
        now: int,
        asking: bool,
    ) -> Draft:
        """What is planned; where the model drafts, its draft takes the part's place. alone: as in
        `Proposer.propose`; timed: by it is learnt what drafts take; now: this round; asking:
        whether lookups are asked in it."""
        self.sparing.drafted(agenda.saved)
        places = agenda.asks.places
        for place in places:
            if self._reading.unread(agenda.decodes[place].request) > READ_ALONG:
                self._reading.caught_up(agenda.requests[place], now, asking)
        draft = self._draft(agenda, agenda.asks, agenda.worth, parts, alone, timed)
        self._mine = [place for place in places if _drafts_for(draft, place)]
        return draft

    def again(self, agenda: Agenda, alone: bool) -> Draft:
        """What is planned, in a round that is not timed, behind one for the same requests: in most
        rounds of few requests no more than this is done."""
        asks = agenda.asks
        self.asked, self.streaks = asks.lengths, asks.streaks
        if self.held is not None:
            self.sparing.drafted(agenda.saved)
            self._show(asks)
        found = self.proposer.propose(asks.decodes, alone)
        self._mine = [place for place in asks.places if _drafts_for(found, place)]
        return found

    def probe(self, agenda: Agenda, parts: list[Part], alone: bool) -> Draft:
        """Tries the model, which is not expected to pay, for the request that loses least by it, of
        equal ones in turn."""
        places = able(agenda.decodes, agenda.requests, self.place)
        waived = {place: _waived(agenda, place) for place in places}
        unread = {place: self._reading.unread(agenda.decodes[place].request) for place in places}
        tries = {place: agenda.requests[place].tries for place in places}
        place = min(places, key=lambda one: (waived[one], unread[one], tries[one]))
        agenda.requests[place].tries += 1
        agenda.requests[place].drafts += 1
        asked = [0] * len(parts)
        asked[place] = min(PROBE, agenda.decodes[place].lookahead)
        asks = asks_of(agenda.decodes, asked)
        began = self.watch.clock()
        draft = self._draft(agenda, asks, 0.0, parts, alone, timed=True)
        took = agenda.took + self._seconds(began, draft)
        self._charge(len(parts), took + waived[place])
        return draft

    def taps_of(self, plan: StepPlan) -> tuple[int, ...] | None:
        """As in `Proposer`."""
        if self.held is None:
            return None
        if self.sparing.spares:
            self.held.lose(plan.requests())
            return None
        if not self.proposer.reads_all:
            return self.proposer.taps
        wanted = any(not request.states_lost for request in plan.requests())
        return self.proposer.taps if wanted else None

    def observe(
        self,
        decodes: Sequence[Decode],
        requests: Sequence[Known],
        draft: Draft,
        verdicts: Sequence[Verdict],
        asking: bool,
    ) -> None:
        """What became of what it has drafted, and of lookups' drafts, where these were asked in
        the same round."""
        for place in self._mine:
            turned = requests[place].drew(len(verdicts[place].tokens), draft.depth(place))
            self.turned = self.turned or turned
        self._mine = ()
        if asking:
            mine = [
                tokens if known.taken == self.place else []
                for known, tokens in zip(requests, draft.tokens, strict=False)
            ]
            draft = draft._replace(tokens=mine)
        self.proposer.observe(decodes, draft, verdicts)

    def absorb(self, computed: Sequence[Computed], features: Tensor) -> None:
        """As in `Proposer`."""
        assert self.held is not None
        self.held.add(computed, features)

    def _draft(
        self,
        agenda: Agenda,
        asks: Asks,
        worth: float,
        parts: list[Part],
        alone: bool,
        timed: bool,
    ) -> Draft:
        self.asked, self.streaks = asks.lengths, asks.streaks
        unread = self._unread(asks) if timed else 0
        if self.proposer.confidence is not None:
            self.proposer.confidence.open_from(worth)
        began = self.watch.clock()
        self._show(asks)
        found = self.proposer.propose(asks.decodes, alone)
        if timed:
            seconds = self._seconds(began, found)
            self.watch.drafted(_drawn(asks, found), seconds, unread - self._unread(asks))
        for place in asks.places if self.place else ():
            if _drafts_for(found, place):
                parts[place], agenda.requests[place].taken = part_of(found, place), self.place
        return found

    def _show(self, asks: Asks) -> None:
        """What the target has computed for those who are asked for, where that is looked at."""
        if self.held is None:
            return
        requests = [asks.decodes[place].request for place in asks.places]
        assert not any(request.states_lost for request in requests)
        self.held.show(requests)

    def _unread(self, asks: Asks) -> int:
        """Tokens that it has to read for those that it is asked for."""
        unread = [self._reading.unread(asks.decodes[place].request) for place in asks.places]
        return sum([max(0, one) for one in unread])

    def _seconds(self, began: float, draft: Draft) -> float:
        """That drafting took."""
        return draft.verified.drafting if draft.verified else self.watch.clock() - began

    def _charge(self, batch: int, seconds: float) -> None:
        """What a probe took and lost, and what its rows add to the pass of the batch."""
        passes = self.watch.costs.passes(batch + PROBE)
        self.watch.costs.explored(seconds + passes[batch + PROBE] - passes[batch])


def _waived(agenda: Agenda, place: int) -> float:
    """Seconds that what is planned for the request should save."""
    return agenda.gains[place] / agenda.plan.rate


def _drafts_for(found: Draft, place: int) -> bool:
    """Whether something was drafted for the request at this place, or might have been; a long text
    is read part by part, and nothing is drafted before its end."""
    return bool(found.tokens[place] or (found.sure and found.sure[place]))


def _drawn(asks: Asks, found: Draft) -> list[int]:
    """Levels of each draft: where one ended by itself, that at which it did counts too. None of
    those whose texts are still read."""
    asked, places = asks.lengths, asks.places
    if found.sure is None:
        return [asked[place] if found.tokens[place] else 0 for place in places]
    return [len(found.sure[place]) or len(found.tokens[place]) for place in places]
