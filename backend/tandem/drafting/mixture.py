"""Several methods side by side: for each request and step the one that should gain most proposes.

Lookups (n-gram, suffix) guess from the text alone, and cost next to nothing: they are all asked,
and judged by what the text became, whether or not their draft was taken. Where none of theirs
should yield as many tokens a second as the method that guesses with a model, the model drafts.
How far each draft reaches is decided for the whole batch (`lengths`).

What the target computes is shown to the model when it is asked to draft, not before: where lookups
do well it costs nothing. Now and then a model that is not expected to pay is tried again, within a
small share of the time.

What is expected of a method comes from how its earlier drafts fared, and its time from earlier
rounds: nothing that is drawn in this round decides whether it is drafted or verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor

from tandem.drafting import Computed, Draft, Proposer, Verdict
from tandem.drafting.costs import READ_ALONG, RoundCosts
from tandem.drafting.gains import Gains
from tandem.drafting.held import HeldStates
from tandem.drafting.lengths import Option, Outlook, Plan, best_lengths, outlook
from tandem.drafting.parts import NOTHING, Part, joined, part_of
from tandem.request import Request
from tandem.scheduler import Decode

PROBE = 2  # tokens of a draft that is not expected to pay
MARGIN = 1.1  # times the rate of others, that a model must promise: the best of several estimates
# is on average too good, and where it was wrong a model costs more than a lookup
SLACK = 0.95  # of the best rate is enough for a lookup to draft as far as it wants: it has seen the
# match, and what is drafted teaches more
PLANNED_FOR = 8  # rounds that a request's outlooks hold: what they rest on changes slowly


class Method(NamedTuple):
    """One of the mixture."""

    name: str
    proposer: Proposer
    is_lookup: bool


class _Choice(NamedTuple):
    """The method that should gain most for a request."""

    method: Method
    part: Part
    """A lookup's draft; nothing where the model is to draft."""
    option: Option
    length: int
    """Best for this request, if the whole batch did the same, and..."""
    rate: float
    """... the tokens a second that it should yield then."""


class _Outlooks(NamedTuple):
    """What drafts should be worth to a request."""

    batch: int
    until: int
    """The round when they are worked out anew."""
    known: dict[tuple[str, int], Outlook]
    """By method and size of the draft (`Gains.size`), as far as they were asked for."""


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
        self._gains = {method.name: Gains(longest) for method in methods}
        self._found: dict[Request, dict[str, Part]] = {}
        """What lookups found for the requests of this round."""
        self._taken: dict[Request, str] = {}
        """Whose draft is verified in this round."""
        self._outlooks: WeakKeyDictionary[Request, _Outlooks] = WeakKeyDictionary()
        self._round = 0
        self._rows = 0
        self._proposed_at: float | None = None
        self._observed_at: float | None = None
        self._first: str | None = None
        """Of the last round's requests: where it goes on, nothing was waited for in between."""

    # -- drafting ------------------------------------------------------------------------------

    def propose(self, decodes: Sequence[Decode]) -> Draft:
        if not decodes:
            return Draft([])
        self._round += 1
        goes_on, self._first = decodes[0].request.id == self._first, decodes[0].request.id
        self._look_up(decodes)
        choices = [self._choose(decode, len(decodes)) for decode in decodes]
        plan = self._plan(choices)
        if goes_on and self._observed_at is not None:
            self.costs.observe_between(self._clock() - self._observed_at)
        planned = list(zip(choices, plan.lengths, strict=True))
        parts = [choice.part.cut(length) for choice, length in planned]
        self._taken = {
            decode.request: choice.method.name
            for decode, choice in zip(decodes, choices, strict=True)
        }
        q = None
        by_model = any(choice.option.by_model for choice in choices)
        if self.model is not None and (by_model or self.costs.may_explore):
            asked = [length * choice.option.by_model for choice, length in planned]
            waived = [sum(choice.option.gains[:n]) / plan.rate for choice, n in planned]
            q = self._draft(self.model, decodes, asked, parts, waived)
        self._rows = sum(1 + len(part.tokens) for part in parts)
        self._proposed_at = self._clock()
        drawn = None if q is None else [self._is_models(decode.request) for decode in decodes]
        return joined(parts, q, drawn)

    def _look_up(self, decodes: Sequence[Decode]) -> None:
        """Asks every lookup."""
        self._found = {decode.request: {} for decode in decodes}
        for method in self.lookups:
            found = method.proposer.propose(decodes)
            for place, decode in enumerate(decodes):
                self._found[decode.request][method.name] = part_of(found, place)

    def _choose(self, decode: Decode, batch: int) -> _Choice:
        """What should yield most tokens a second, if the whole batch did the same."""
        request = decode.request
        outlooks = self._outlooks.get(request)
        if outlooks is None or outlooks.until <= self._round or outlooks.batch != batch:
            outlooks = _Outlooks(batch, self._round + PLANNED_FOR, {})
            self._outlooks[request] = outlooks
        found, best = self._found[request], None
        for method in self._methods:
            by_model, part = method is self.model, found.get(method.name, NOTHING)
            count = self._longest_by_model if by_model else len(part.tokens)
            key = method.name, Gains.size(count)
            if key not in outlooks.known:
                outlooks.known[key] = self._look_ahead(method, request, count, batch)
            gains, lengths, rates = outlooks.known[key]
            count = min(count, decode.lookahead)
            least = MARGIN if by_model else 1.0
            if best is None or rates[count] > least * best.rate:
                option = Option(gains[:count], by_model)
                best = _Choice(method, part, option, lengths[count], rates[count])
        assert best is not None
        return best

    def _look_ahead(self, method: Method, request: Request, count: int, batch: int) -> Outlook:
        """What a draft of about `count` tokens should be worth."""
        seconds = self.costs.passes(batch * (1 + self.longest))
        gains = self._gains[method.name].expected(request, count)
        if method is not self.model:
            return outlook(seconds, batch, gains, slack=SLACK)
        reading = self.costs.reading(self._unread(request))
        return outlook(seconds, batch, gains, self.costs.level(batch), reading)

    def _plan(self, choices: Sequence[_Choice]) -> Plan:
        """How far each draft reaches."""
        if len(choices) == 1:
            return Plan([choices[0].length], choices[0].rate)
        seconds = self.costs.passes(len(choices) * (1 + self.longest))
        level = self.costs.level(max(1, sum(choice.option.by_model for choice in choices)))
        return best_lengths(seconds, level, [choice.option for choice in choices])

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
        assert self._held is not None
        began = self._clock()
        unread = {request: self._unread(request) for request in (decodes[i].request for i in mine)}
        self._held.show(list(unread))
        for request, rows in unread.items():
            if rows > READ_ALONG:  # that it need not read them again changes its outlook
                self._outlooks.pop(request, None)
        found = model.proposer.propose(
            [decode._replace(lookahead=n) for decode, n in zip(decodes, asked, strict=True)]
        )
        seconds = self._clock() - began
        self.costs.observe_draft(len(mine), max(asked), seconds, sum(unread.values()))
        if probed is not None:
            count = len(decodes)
            passes = self.costs.passes(count + PROBE)
            self.costs.explored(seconds + passes[count + PROBE] - passes[count] + waived[probed])
        for place in mine:
            if found.tokens[place]:  # otherwise it still reads the text
                parts[place] = part_of(found, place)
                self._taken[decodes[place].request] = model.name
        return found.q

    def _probed(self, decodes: Sequence[Decode], waived: Sequence[float]) -> int | None:
        """Where there is time, the request that loses least if the model is tried for it."""
        able = [place for place, decode in enumerate(decodes) if decode.lookahead]
        if not able or not self.costs.may_explore:
            return None
        return min(able, key=lambda place: (waived[place], self._unread(decodes[place].request)))

    def _unread(self, request: Request) -> int:
        """Tokens that the model has to read before it can draft."""
        assert self._held is not None
        return max(self._held.rows(request), request.computed - request.draft_computed)

    def _is_models(self, request: Request) -> bool:
        return self.model is not None and self._taken[request] == self.model.name

    # -- learning ------------------------------------------------------------------------------

    def observe(self, request: Request, drafted: int, verdict: Verdict) -> None:
        if self._proposed_at is not None:
            self.costs.observe_pass(self._rows, self._clock() - self._proposed_at)
            self._proposed_at = None
        taken, found = self._taken.pop(request), self._found.pop(request)
        for method in self.lookups:
            part = found[method.name]
            if method.name == taken and drafted:
                tried, kept = part.verified(drafted, verdict)
            else:
                tried, kept = part.judged(verdict.tokens)
            self._gains[method.name].learn(request, len(part.tokens), tried, kept)
            method.proposer.observe(request, 0, verdict)
        if self.model is not None:
            own = drafted if taken == self.model.name else 0
            kept = verdict.path if own else []
            self._gains[self.model.name].learn(request, self._longest_by_model, own, kept)
            self.model.proposer.observe(request, own, verdict)
        self._observed_at = self._clock()

    def absorb(self, computed: Sequence[Computed], features: Tensor) -> None:
        assert self._held is not None
        self._held.add(computed, features)
