"""What rounds take beside their passes and drafts: scheduling, commits, planning. It grows with the
number of requests, and is learnt as seconds a request."""

from __future__ import annotations

MEMORY = 0.8  # of a moving average, and...
LONG_MEMORY = 0.95  # ... of one of times among which some, in which plans are made, are far longer
# (where most rounds are not timed, those are next to never: a plan is 1 % of the rounds it holds)
OUTLIER = 2.0  # times what is known, at most: others may have had the processor
NOBODY = 8  # requests whose work takes as long as what is done once a round


def averaged(old: float | None, new: float, memory: float = MEMORY) -> float:
    """The moving average after a new value."""
    return new if old is None else memory * old + (1 - memory) * new


def steadied(known: float | None, new: float, memory: float = MEMORY) -> float:
    """The same, of times of which any may have been disturbed, the first ones too, behind which
    perhaps no others would come."""
    if not known:
        return new
    if new > 0:
        known = min(known, OUTLIER * new)
    return averaged(known, min(new, OUTLIER * known), memory)


class BetweenPasses:
    """Seconds from the end of a round to that of the next one, its pass, a model's draft and asking
    lookups not counted."""

    def __init__(self) -> None:
        self._plain: float | None = None
        """A request, and..."""
        self._drafting: float | None = None
        """... the same of rounds in which the model drafts."""

    def observe(self, requests: int, seconds: float, by_model: bool = False) -> None:
        """It took so long with so many requests. by_model: the model drafted, which takes
        longer to plan and to learn from."""
        each = seconds / (NOBODY + requests)
        if by_model:
            self._drafting = steadied(self._drafting, each, LONG_MEMORY)
        elif self._plain:
            self._plain = averaged(self._plain, min(each, OUTLIER * self._plain), LONG_MEMORY)
        else:
            self._plain = each

    def of(self, requests: int) -> float:
        """Seconds expected of a round without a model's draft, which takes no longer than one with
        it: where drafts are the rule, the others were seen long ago."""
        known = [each for each in (self._plain, self._drafting) if each is not None]
        return (NOBODY + requests) * min(known, default=0.0)

    def besides(self, requests: int) -> float:
        """Seconds expected of a round with a model's draft, more than of others."""
        if self._drafting is None:
            return 0.0
        return max(0.0, (NOBODY + requests) * self._drafting - self.of(requests))
