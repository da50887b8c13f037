"""Several methods side by side: for each request and step the one that should gain most proposes.

Lookups (n-gram, suffix) guess from the text alone, and cost next to nothing: they are asked first.
Where what they found should bring more tokens in the time of a round than the method that guesses
with a model, their draft is taken, and the model does not run for that request.

What the target computes is shown to the model when it is asked to draft, not before: where lookups
do well it costs nothing.

What is expected of a method comes from how its earlier drafts fared for this request, and its time
from earlier rounds: nothing that is drawn in this round decides whether it is drafted or verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tandem.drafting import Computed, Draft, Proposer, Verdict
from tandem.drafting.costs import RoundCosts, averaged
from tandem.request import Request
from tandem.scheduler import Decode

TRY_AGAIN = 16  # rounds after which a model that was not worth its time is given another chance
PRIOR = 0.6  # share of drafted tokens that is expected to be kept before anything is known


class Method(NamedTuple):
    """One of the mixture."""

    name: str
    proposer: Proposer
    is_lookup: bool


class _Record:
    """How a method has fared for one request."""

    def __init__(self) -> None:
        self.kept = PRIOR
        """Share of its drafted tokens that were kept."""
        self.tokens: float | None = None
        """Tokens of a draft that were kept."""
        self.passed_over = 0
        """Rounds since its last draft."""

    def update(self, drafted: int, accepted: int) -> None:
        prior = PRIOR * drafted if self.tokens is None else self.tokens
        self.tokens = averaged(prior, accepted)
        self.kept = averaged(self.kept, accepted / drafted)
        self.passed_over = 0


class MixtureProposer(Proposer):
    """Asks lookups first, then the one method that guesses with a model, if there is one."""

    def __init__(
        self, methods: Sequence[Method], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._clock = clock
        self.lookups = [method for method in methods if method.is_lookup]
        self.guessing = next((method for method in methods if not method.is_lookup), None)
        self.taps = self.guessing.proposer.taps if self.guessing else None
        self.costs = RoundCosts()
        self._records: WeakKeyDictionary[Request, dict[str, _Record]] = WeakKeyDictionary()
        self._chosen: WeakKeyDictionary[Request, str] = WeakKeyDictionary()
        self._held: WeakKeyDictionary[Request, _Held] = WeakKeyDictionary()
        self._batch = 1
        self._rows = 0
        self._proposed_at: float | None = None

    def propose(self, decodes: Sequence[Decode]) -> Draft:
        drafts = [_Part([], None) for _ in decodes]
        self._batch = len(decodes)
        left = [place for place, decode in enumerate(decodes) if decode.lookahead]
        for method in self.lookups:
            found = method.proposer.propose([decodes[place] for place in left])
            for index, place in enumerate(left):
                self._consider(drafts, place, decodes[place], method, _part(found, index))
        q = self._guess(decodes, drafts, left)
        self._rows = sum(1 + len(part.tokens) for part in drafts)
        self._proposed_at = self._clock()
        return _joined(drafts, q)

    def _consider(
        self, drafts: list[_Part], place: int, decode: Decode, method: Method, part: _Part
    ) -> None:
        """The better of two lookups by the tokens they should bring."""
        best = drafts[place]
        if self._expected(decode.request, method.name, part) > self._expected(
            decode.request, self._chosen.get(decode.request, ""), best
        ):
            drafts[place] = part
            self._chosen[decode.request] = method.name

    def _guess(
        self, decodes: Sequence[Decode], drafts: list[_Part], left: Sequence[int]
    ) -> Tensor | None:
        """Has the model draft for the requests that it should gain more for."""
        if self.guessing is None:
            return None
        mine = [place for place in left if self._prefers_model(decodes[place], drafts[place])]
        began = self._clock()
        self._catch_up([decodes[place].request for place in mine])
        own = [
            decode if place in mine else decode._replace(lookahead=0)
            for place, decode in enumerate(decodes)
        ]
        found = self.guessing.proposer.propose(own)
        if mine:
            self.costs.observe_draft(self._clock() - began)
        for place in mine:
            part = _part(found, place)._replace(drawn=found.q is not None)
            if not part.tokens:  # it still reads the text
                continue
            drafts[place] = part
            self._chosen[decodes[place].request] = self.guessing.name
        return found.q

    def _prefers_model(self, decode: Decode, lookup: _Part) -> bool:
        assert self.guessing is not None
        record = self._record(decode.request, self.guessing.name)
        tokens = PRIOR * decode.lookahead if record.tokens is None else record.tokens
        seconds = self._pass(decode.lookahead) + self.costs.of_draft()
        model = (1 + min(tokens, decode.lookahead)) / seconds
        chosen = self._chosen.get(decode.request, "")
        found = 1 + self._expected(decode.request, chosen, lookup)
        record.passed_over += 1
        if not lookup.tokens and record.passed_over > TRY_AGAIN:
            return True
        return model >= found / self._pass(len(lookup.tokens))

    def _pass(self, drafted: int) -> float:
        """Seconds of a round if every request of the batch drafted so many tokens."""
        return self.costs.of_pass(self._batch * (1 + drafted))

    def _expected(self, request: Request, name: str, part: _Part) -> float:
        """Tokens of a draft that should be kept."""
        return self._record(request, name).kept * len(part.tokens) if part.tokens else 0.0

    def _record(self, request: Request, name: str) -> _Record:
        return self._records.setdefault(request, {}).setdefault(name, _Record())

    def observe(self, request: Request, drafted: int, verdict: Verdict) -> None:
        if self._proposed_at is not None:
            self.costs.observe_pass(self._rows, self._clock() - self._proposed_at)
            self._proposed_at = None
        chosen = self._chosen.get(request, "")
        if drafted:
            self._record(request, chosen).update(drafted, len(verdict.path))
        for method in [*self.lookups, *([self.guessing] if self.guessing else [])]:
            own = drafted if method.name == chosen else 0
            method.proposer.observe(request, own, verdict)

    def absorb(self, computed: Sequence[Computed], features: Tensor) -> None:
        """Prompts are passed on: their blocks become prefixes for others. Answers are held."""
        assert self.guessing is not None
        prompts = [one for one in computed if one.start < one.request.num_prompt]
        self.guessing.proposer.absorb(prompts, features)
        for request, start, rows in computed:
            if start < request.num_prompt:
                self._held.pop(request, None)
                continue
            held = self._held.get(request)
            if held is None or held.start + sum(map(len, held.features)) != start:
                held = self._held[request] = _Held(start, [])
            held.features.append(features[list(rows)])

    def _catch_up(self, requests: Sequence[Request]) -> None:
        """Shows the model what was held of these requests."""
        assert self.guessing is not None
        found = [
            (request, self._held.pop(request)) for request in requests if request in self._held
        ]
        if not found:
            return
        computed: list[Computed] = []
        first = 0
        for request, held in found:
            count = sum(map(len, held.features))
            computed.append(Computed(request, held.start, range(first, first + count)))
            first += count
        every = torch.cat([part for _, held in found for part in held.features])
        self.guessing.proposer.absorb(computed, every)


class _Held(NamedTuple):
    """What the target has computed of an answer, in order."""

    start: int
    features: list[Tensor]
    """Each [n, width]."""


class _Part(NamedTuple):
    """One request's draft."""

    tokens: list[int]
    parents: list[int] | None
    drawn: bool = False


def _part(draft: Draft, index: int) -> _Part:
    return _Part(draft.tokens[index], draft.parents[index] if draft.parents else None)


def _joined(parts: Sequence[_Part], q: Tensor | None) -> Draft:
    trees = any(part.parents is not None for part in parts)
    parents = [
        list(range(len(part.tokens))) if part.parents is None else part.parents for part in parts
    ]
    return Draft(
        [part.tokens for part in parts],
        parents if trees else None,
        q,
        [part.drawn for part in parts] if q is not None else None,
    )
