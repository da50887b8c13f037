"""Hidden states that a model has not been shown yet: they wait until it is asked to draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tandem.drafting import Computed, Proposer
from tandem.request import Request

MOST_ROWS = 256  # of a request, then the model is shown them without being asked


class _Held(NamedTuple):
    """What the target has computed of an answer, in order."""

    start: int
    features: list[Tensor]
    """Each [n, width]."""

    @property
    def rows(self) -> int:
        return sum(map(len, self.features))


class HeldStates:
    """Where others guess well, what a model would read of an answer costs nothing."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self._held: WeakKeyDictionary[Request, _Held] = WeakKeyDictionary()

    def rows(self, request: Request) -> int:
        """How many wait."""
        held = self._held.get(request)
        return held.rows if held else 0

    def add(self, computed: Sequence[Computed], features: Tensor) -> None:
        """Prompts are passed on: their blocks become prefixes for others. Answers are held."""
        prompts = [one for one in computed if one.start < one.request.num_prompt]
        self._proposer.absorb(prompts, features)
        for request, start, rows in computed:
            if start < request.num_prompt:
                self._held.pop(request, None)
                continue
            held = self._held.get(request)
            if held is None or held.start + held.rows != start:
                held = self._held[request] = _Held(start, [])
            held.features.append(features[list(rows)])
        self.show([one.request for one in computed if self.rows(one.request) >= MOST_ROWS])

    def show(self, requests: Sequence[Request]) -> None:
        """Shows the model what was held of these requests."""
        found = [
            (request, self._held.pop(request)) for request in requests if request in self._held
        ]
        if not found:
            return
        computed: list[Computed] = []
        first = 0
        for request, held in found:
            computed.append(Computed(request, held.start, range(first, first + held.rows)))
            first += held.rows
        every = torch.cat([part for _, held in found for part in held.features])
        self._proposer.absorb(computed, every)
