"""Methods that guess with a model: what such a model does, apart from how its guesses are used.

A guesser that is `ready` predicts the token behind each text (`begin`), then the tokens behind the
nodes it is handed (`extend`), level by level, or whole chains in one go (`at_once`). `chain` and
`tree` choose which guesses become nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from tandem.drafting import Computed
from tandem.request import Request
from tandem.scheduler import Decode
from tandem.verification.judging import Draws


class Level(NamedTuple):
    """The newest nodes of one request's growing draft."""

    request: Request
    tokens: Sequence[int]
    """Of all nodes fed so far and the new ones, which come last."""
    parents: Sequence[int]
    """Node that each follows; -1: the text."""
    new: int
    """How many are new."""
    origins: Sequence[int]
    """Row of the previous logits that each new node was chosen from."""


class Grown(NamedTuple):
    """B chains."""

    tokens: list[list[int]]
    sure: list[Sequence[float]]
    """[B] shares of the likeliest token at each place that was looked at: one more than tokens
    where a chain ended early. Empty without a gate."""


Chains = Callable[[Draws], Grown]
"""Each request's chain, in the place of `begin` and `extend`."""


class Guesser(Protocol):
    """A model that guesses tokens level by level."""

    max_depth: int
    """Most levels it can guess."""
    taps: tuple[int, ...] | None
    reads_all: bool
    """Both as in `Proposer`."""

    @property
    def at_once(self) -> Chains | None:
        """What draws whole chains in one go; None: it is asked level by level."""
        ...

    def ready(self, decodes: Sequence[Decode]) -> list[int]:
        """Which of the decodes it can draft for now, as indices; it reads on for the others."""
        ...

    def begin(self, decodes: Sequence[Decode]) -> Tensor:
        """Logits [B, V] of the token behind each text; all are ready."""
        ...

    def extend(self, levels: Sequence[Level]) -> Tensor:
        """Feeds the new nodes of all levels; logits [sum of new, V] of what follows each."""
        ...

    def keep(self, request: Request, nodes: int) -> None:
        """Told before the commit how many of the first nodes fed have become text, in order."""
        ...

    def absorb(self, computed: Sequence[Computed], features: Tensor) -> None:
        """As in `Proposer`."""
        ...


def depth(level: Level) -> int:
    """How many drafted tokens lead to the newest nodes, themselves counted."""
    node, count = len(level.tokens) - 1, 0
    while node >= 0:
        node, count = level.parents[node], count + 1
    return count
