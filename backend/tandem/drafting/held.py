"""Hidden states that a model has not been shown yet: they wait until it is asked to draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tandem.drafting import Computed, Proposer
from tandem.request import Notes, Request

MOST_ROWS = 64  # of an answer, where prefixes are shared, then the model is shown them unasked
MOST_UNSHARED = 2048  # of a text, where they are not, ...
MOST_BYTES = 256 << 20  # ... and of all texts together, so that no memory has to be set aside
ROWS_AT_ONCE = 1024
MOST_KEPT = 256  # rows of a pass that are kept for some of them, ...
MOST_PARTS = 16  # ... and passes


@dataclass(slots=True)
class _Held:
    """What the target has computed of an answer, in order."""

    start: int
    rows: int = 0
    whole: list[Tensor] = field(default_factory=list)
    """Hidden states, and behind them..."""
    parts: list[tuple[Tensor, Sequence[int]]] = field(default_factory=list)
    """... passes' hidden states, and which rows of them."""

    def add(self, features: Tensor, rows: Sequence[int]) -> None:
        """What a pass has computed of it."""
        self.rows += len(rows)
        self.parts.append((features, rows))
        if len(self.parts) == MOST_PARTS or len(features) > MOST_KEPT:
            self.whole.append(torch.cat(self._copies()))
            self.parts = []

    def states(self) -> list[Tensor]:
        """All of it, one behind the other."""
        return self.whole + self._copies()

    def _copies(self) -> list[Tensor]:
        return [features[_selected(rows)] for features, rows in self.parts]


class HeldStates:
    """Where others guess well, what a model would read costs nothing."""

    def __init__(self, proposer: Proposer, shares_prefixes: bool, most_requests: int = 1) -> None:
        """shares_prefixes: others may adopt blocks that the model has read, so that it reads
        prompts at once, and answers before long. most_requests: at a time."""
        self._proposer = proposer
        self._shares_prefixes = shares_prefixes
        self._most_bytes = MOST_BYTES // most_requests
        self._held = Notes[_Held]()
        self._unsorted: list[tuple[Sequence[Computed], Tensor]] = []

    def add(self, computed: Sequence[Computed], features: Tensor) -> None:
        """Keeps what the target has computed, but of requests of which it has not kept all."""
        if not self._proposer.reads_all:  # from here on there is all that is needed
            for one in computed:
                one.request.states_lost = False
        computed = [one for one in computed if not one.request.states_lost]
        if self._shares_prefixes:
            computed = self._read_prompts(computed, features)
        self._unsorted.append((computed, features))
        large = len(self._unsorted) == MOST_PARTS or len(features) > MOST_KEPT
        if large or any(one.request.finish_reason for one in computed):
            self._sort()

    def lose(self, requests: Sequence[Request]) -> None:
        """Keeps nothing of what is computed of these now, nor what was."""
        for request in requests:
            request.states_lost = True
            self._held.pop(request)
        if self._unsorted:
            self._sort()

    def _sort(self) -> None:
        """Some passes at a time: behind each of them it would take several times as long."""
        unsorted, self._unsorted = self._unsorted, []
        full: set[Request] = set()
        for passed, features in unsorted:
            for request, start, rows in passed:
                if request.finish_reason is not None or request.states_lost:
                    continue
                if start + len(rows) > request.computed:  # preempted since: it has no blocks
                    self._held.pop(request)
                    continue
                held = self._held.get(request)
                if held is None or held.start + held.rows != start:
                    held = self._held[request] = _Held(start)
                held.add(features, rows)
                if held.rows >= self._most(features):
                    full.add(request)
        if full:
            self.show(list(full))

    def _most(self, features: Tensor) -> int:
        """Rows of a text."""
        if self._shares_prefixes:
            return MOST_ROWS
        fitting = self._most_bytes // (features.shape[1] * features.element_size())
        return min(MOST_UNSHARED, max(MOST_ROWS, fitting))

    def _read_prompts(self, computed: Sequence[Computed], features: Tensor) -> Sequence[Computed]:
        """What is of prompts is shown; returns the rest."""
        prompts = [one for one in computed if one.start < one.request.num_prompt]
        if not prompts:
            return computed
        self._sort()
        for request, _, _ in prompts:
            self._held.pop(request)
        self._proposer.absorb(prompts, features)
        return [one for one in computed if one.start >= one.request.num_prompt]

    def show(self, requests: Sequence[Request]) -> None:
        """Shows the model what was held of these requests."""
        self._sort()
        computed: list[Computed] = []
        parts: list[Tensor] = []
        first = 0
        for request in requests:
            held = self._held.pop(request)
            if held is None:
                continue
            if first + held.rows > ROWS_AT_ONCE and computed:
                self._proposer.absorb(computed, torch.cat(parts))
                computed, parts, first = [], [], 0
            computed.append(Computed(request, held.start, range(first, first + held.rows)))
            parts += held.states()
            first += held.rows
        if computed:
            self._proposer.absorb(computed, torch.cat(parts))


def _selected(rows: Sequence[int]) -> slice | list[int]:
    """A chain's rows are a run, which needs no copy."""
    if rows and rows[-1] - rows[0] == len(rows) - 1:
        return slice(rows[0], rows[-1] + 1)
    return list(rows)
