"""Several methods side by side: for each request and step the one that should gain most proposes.

Lookups (n-gram, suffix) guess from the text alone, and cost next to nothing: they are all asked,
and judged by what the text became, whether or not their draft was taken. Where none of theirs
should yield as many tokens a second as the method that guesses with a model, the model drafts.
How far each draft reaches is decided for the whole batch (`lengths`).

What the target computes is shown to the model when it is asked to draft, not before: where lookups
do well it costs nothing. Now and then a model that is not expected to pay is tried again, within a
small share of the time. For a request that names one of the methods no other drafts.

What is expected of a method comes from how its earlier drafts fared, and its time from earlier
rounds: nothing that is drawn in this round decides whether it is drafted or verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from tandem.drafting import Computed, Draft, Proposer, Verdict
from tandem.drafting.costs import READ_ALONG, RoundCosts
from tandem.drafting.gains import Gains
from tandem.drafting.held import HeldStates
from tandem.drafting.lengths import Option, Outlook, Plan, best_lengths, outlook
from tandem.drafting.parts import NOTHING, Part, joined, part_of
from tandem.drafting.remembered import PLANNED_FOR, Choice, Judged, Known
from tandem.request import Notes, Request
from tandem.scheduler import Decode

PROBE = 2  # tokens of a draft that is not expected to pay
# Times the rate of others, and of none, that a model must promise: the best of several estimates is
# on average too good, planning takes time too, and where it was wrong a model costs more than a
# lookup.
MARGIN = 1.1
CLOSE = 1.3  # times the rate of plain decoding, and less
FIRST_REST = 7  # rounds before the first rest: what was known before the drafts may be old
REST_EVERY = 61  # rounds, later; no multiple of PLANNED_FOR: then all rests would precede a plan
SLACK = 0.95  # of the best rate is enough for a lookup to draft as far as it wants: it has seen the
# match, and what is drafted teaches more


class Method(NamedTuple):
    """One of the mixture."""

    name: str
    proposer: Proposer
    is_lookup: bool


class MixtureProposer(Proposer):
    """Asks lookups first, then the one method that guesses with a model, if there is one."""

    def __init__(
        self,
        methods: Sequence[Method],
        longest: int,
        costs: RoundCosts,
        shares_prefixes: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """longest: most tokens of a draft. shares_prefixes: as in `HeldStates`."""
        self._clock = clock
        self.lookups = [method for method in methods if method.is_lookup]
        self.model = next((method for method in methods if not method.is_lookup), None)
        self.taps = self.model.proposer.taps if self.model else None
        self.costs = costs
        self._held = HeldStates(self.model.proposer, shares_prefixes) if self.model else None
        self.longest = longest
        self._methods = [*self.lookups, *([self.model] if self.model else [])]
        self._longest_by_model = min(longest, self.model.proposer.longest) if self.model else 0
        self._gains = [Gains(longest) for _ in self._methods]
        self._requests = Notes[Known]()
        self._judged: list[Judged] = []
        """What is still to be learnt."""
        self._planned: Plan | None = None
        self._planned_until = 0
        self._asked: list[tuple[Request, int]] = []
        """By whom, and how much, when it was planned."""
        self._rounds = 0
        self._first = ""
        """Of the last round's requests. Where it goes on, nothing was waited for in between."""
        self._rows = 0
        """Of the last pass."""
        self._by_model = False
        """Whether the model drafted in it."""
        self._rests_at, self._rest_every = FIRST_REST, FIRST_REST
        """The round to be left without a draft, and how many come before the next one."""
        self._last_planned = 0
        """The last round for which a draft of the model's was planned."""
        self._proposed_at = 0.0
        self._observed_at: float | None = None
        """None: the round's pass is under way."""

    # -- drafting ------------------------------------------------------------------------------

    def propose(self, decodes: Sequence[Decode]) -> Draft:
        if not decodes:
            return Draft([])
        self._rounds += 1
        requests = [self._known(decode.request) for decode in decodes]
        self._look_up(decodes, requests)
        choices = [
            self._choose(decode, known, len(decodes))
            for decode, known in zip(decodes, requests, strict=True)
        ]
        plan = self._plan(decodes, choices)
        self._observe_between(decodes[0].request.id)
        by_model = any(choice.option.by_model for choice in choices)
        resting = by_model and self._rests(plan)
        if resting:
            plan = Plan([0] * len(decodes), plan.rate)
        parts = [
            known.found[choice.place].cut(length) if choice.place < len(known.found) else NOTHING
            for known, choice, length in zip(requests, choices, plan.lengths, strict=True)
        ]
        q, self._by_model = None, False
        if self.model is not None and not resting and (by_model or self.costs.may_explore):
            planned = list(zip(choices, plan.lengths, strict=True))
            asked = [length * choice.option.by_model for choice, length in planned]
            waived = [sum(choice.option.gains[:n]) / plan.rate for choice, n in planned]
            q = self._draft(self.model, decodes, asked, parts, waived)
        self._rows = len(parts) + sum([len(part.tokens) for part in parts])
        self._proposed_at, self._observed_at = self._clock(), None
        drawn = None if q is None else [known.taken >= len(self.lookups) for known in requests]
        return joined(parts, q, drawn)

    def _known(self, request: Request) -> Known:
        known = self._requests.get(request)
        if known is None:
            names = [method.name for method in self._methods]
            asked = request.params.speculative_method
            only = names.index(asked) if asked in names else None
            known = self._requests[request] = Known([{} for _ in self._methods], only)
        return known

    def _look_up(self, decodes: Sequence[Decode], requests: Sequence[Known]) -> None:
        """Asks every lookup."""
        drafts = [method.proposer.propose(decodes) for method in self.lookups]
        for index, known in enumerate(requests):
            known.found = [part_of(draft, index) for draft in drafts]

    def _choose(self, decode: Decode, known: Known, batch: int) -> Choice:
        """What should yield most tokens a second, if the whole batch did the same."""
        if known.until <= self._rounds or known.batch != batch:
            self._learn()
            known.begin(batch, self._rounds)
        key = decode.lookahead, *[len(part.tokens) for part in known.found]
        choice = known.choices.get(key)
        if choice is None:
            choice = known.choices[key] = self._compare(decode, known)
        known.taken = choice.place
        return choice

    def _compare(self, decode: Decode, known: Known) -> Choice:
        """The choice among all methods, or those that the request allows."""
        best: Choice | None = None
        for place, method in enumerate(self._methods):
            if known.only not in (None, place):
                continue
            by_model = method is self.model
            count = self._longest_by_model if by_model else len(known.found[place].tokens)
            key = place, Gains.size(count)
            if key not in known.outlooks:
                known.outlooks[key] = self._look_ahead(place, decode.request, known, count)
            gains, lengths, rates = known.outlooks[key]
            count = min(count, decode.lookahead)
            least = MARGIN if by_model else 1.0
            if best is None or rates[count] > least * best.rate:
                option = Option(gains[:count], by_model)
                best = Choice(place, option, lengths[count], rates[count])
        assert best is not None
        return best

    def _look_ahead(self, place: int, request: Request, known: Known, count: int) -> Outlook:
        """What a draft of about `count` tokens should be worth."""
        batch = known.batch
        seconds = self.costs.passes(batch * (1 + self.longest))
        gains = self._gains[place].expected(known.gains[place], count)
        if self._methods[place] is not self.model:
            return outlook(seconds, batch, gains, slack=SLACK)
        reading = batch * self.costs.reading(self._unread(request))
        once = reading + self.costs.besides
        found = outlook(seconds, batch, gains, self.costs.level(batch), once, margin=MARGIN)
        if reading and not any(found.lengths):  # what others draft does not make it worth reading
            found = found._replace(gains=[0.0] * len(gains))
        return found

    def _plan(self, decodes: Sequence[Decode], choices: Sequence[Choice]) -> Plan:
        """How far each draft reaches. Without lookups, whose finds change from round to round, a
        plan holds for some rounds: for many requests it takes long to make."""
        if len(choices) == 1:
            return Plan([choices[0].length], choices[0].rate)
        if self.lookups:
            return self._make_plan(choices)
        asked = [(decode.request, decode.lookahead) for decode in decodes]
        if self._planned is None or self._planned_until <= self._rounds or asked != self._asked:
            self._planned, self._asked = self._make_plan(choices), asked
            self._planned_until = self._rounds + PLANNED_FOR
        return self._planned

    def _rests(self, plan: Plan) -> bool:
        """Whether a round goes without the drafts that are planned: where they promise little more
        than none do, what rounds take without them must stay known."""
        if not any(plan.lengths):
            return False
        if self._rounds > self._last_planned + FIRST_REST:  # drafting begins anew
            self._rests_at, self._rest_every = self._rounds + FIRST_REST, FIRST_REST
        self._last_planned = self._rounds
        batch = len(plan.lengths)
        close = plan.rate * self.costs.passes(batch)[batch] < CLOSE * batch
        if not close or self._rounds < self._rests_at:
            return False
        self._rest_every = min(2 * self._rest_every, REST_EVERY)
        self._rests_at = self._rounds + self._rest_every
        return True

    def _make_plan(self, choices: Sequence[Choice]) -> Plan:
        seconds = self.costs.passes(len(choices) * (1 + self.longest))
        level = self.costs.level(max(1, sum(choice.option.by_model for choice in choices)))
        options = [choice.option for choice in choices]
        return best_lengths(seconds, level, options, SLACK, self.costs.besides, MARGIN)

    def _draft(
        self,
        model: Method,
        decodes: Sequence[Decode],
        asked: list[int],
        parts: list[Part],
        waived: Sequence[float],
    ) -> Tensor | None:
        """Has the model draft so many tokens; where it does, its draft takes the part's place.

        waived: seconds that each part should save.
        """
        probed = None if any(asked) else self._probed(decodes, waived)
        if probed is not None:
            asked[probed] = min(PROBE, decodes[probed].lookahead)
        mine = [place for place, length in enumerate(asked) if length]
        if not mine:
            return None
        began = self._clock()
        read = self._catch_up([decodes[place].request for place in mine])
        found = model.proposer.propose(
            [decode._replace(lookahead=n) for decode, n in zip(decodes, asked, strict=True)]
        )
        seconds, self._by_model = self._clock() - began, True
        self.costs.observe_draft(len(mine), max(asked), seconds, read)
        if probed is not None:
            self._charge_probe(len(decodes), seconds + waived[probed])
        for place in mine:
            if found.tokens[place]:  # otherwise it still reads the text
                parts[place] = part_of(found, place)
                self._known(decodes[place].request).taken = len(self.lookups)
        return found.q

    def _catch_up(self, requests: Sequence[Request]) -> int:
        """Has the model read what was held back of these; how many tokens it has to read."""
        assert self._held is not None
        unread = {request: self._unread(request) for request in requests}
        self._held.show(requests)
        for request, rows in unread.items():
            if rows > READ_ALONG:  # that it need not read them again changes its outlook
                self._known(request).until = self._rounds
        return sum(unread.values())

    def _charge_probe(self, batch: int, seconds: float) -> None:
        """What it took and lost, and what its rows add to the pass of the batch."""
        passes = self.costs.passes(batch + PROBE)
        self.costs.explored(seconds + passes[batch + PROBE] - passes[batch])

    def _probed(self, decodes: Sequence[Decode], waived: Sequence[float]) -> int | None:
        """Where there is time, the request that loses least if the model is tried for it."""
        able = [
            place
            for place, (request, lookahead) in enumerate(decodes)
            if lookahead and self._known(request).only in (None, len(self.lookups))
        ]
        if not able or not self.costs.may_explore:
            return None
        return min(able, key=lambda place: (waived[place], self._unread(decodes[place].request)))

    def _unread(self, request: Request) -> int:
        """Tokens that the model has to read before it can draft."""
        assert self._held is not None
        return max(self._held.rows(request), request.computed - request.draft_computed)

    # -- learning ------------------------------------------------------------------------------

    def observe(self, request: Request, drafted: int, verdict: Verdict) -> None:
        if self._observed_at is None:
            self.costs.observe_pass(self._rows, self._clock() - self._proposed_at)
        known = self._requests[request]
        self._judged.append(Judged(known, known.found, known.taken, drafted, verdict))
        for method in self.lookups:
            method.proposer.observe(request, 0, verdict)
        if self.model is not None:
            own = drafted if known.taken == len(self.lookups) else 0
            self.model.proposer.observe(request, own, verdict)
        self._observed_at = self._clock()

    def _observe_between(self, first: str) -> None:
        """What the round before took besides its pass."""
        if first == self._first and self._observed_at is not None:
            self.costs.observe_between(self._clock() - self._observed_at, self._by_model)
        self._first = first

    def _learn(self) -> None:
        """From what was judged since the last time: seldom, for behind a pass each line is slow."""
        for known, found, taken, drafted, verdict in self._judged:
            for place, part in enumerate(found):
                if place == taken and drafted:
                    judged = part.verified(drafted, verdict)
                else:
                    judged = part.judged(verdict.tokens)
                self._gains[place].learn(known.gains[place], len(part.tokens), *judged)
            if self.model is not None:
                place = len(found)
                tried = drafted if place == taken else 0
                kept = verdict.path if tried else []
                self._gains[place].learn(known.gains[place], self._longest_by_model, tried, kept)
        self._judged = []

    def absorb(self, computed: Sequence[Computed], features: Tensor) -> None:
        assert self._held is not None
        self._held.add(computed, features)
