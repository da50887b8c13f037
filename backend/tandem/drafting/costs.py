"""What a round's parts take, learnt from the rounds before: nothing of the round itself decides."""

from __future__ import annotations

MEMORY = 0.8  # of a moving average
A_ROW = 0.05  # of a one-row pass, that every further row is expected to add
A_DRAFT = 0.3  # of a one-row pass, that a model's draft is expected to take
OUTLIER = 2.0  # times what is known: a round that also reads a prompt counts for no more


def averaged(old: float, new: float) -> float:
    """The moving average after a new value."""
    return MEMORY * old + (1 - MEMORY) * new


class RoundCosts:
    """Seconds of a target pass by its rows, and of a model's draft."""

    def __init__(self) -> None:
        self._passes: dict[int, float] = {}
        """Seconds by size class: 1, 2, 3 to 4, 5 to 8, ... rows."""
        self._draft: float | None = None

    def observe_pass(self, rows: int, seconds: float) -> None:
        """A pass over so many rows took so long."""
        if seconds > 0:
            size = _size(rows)
            self._passes[size] = _steadied(self._passes.get(size), seconds)

    def observe_draft(self, seconds: float) -> None:
        """A model's draft for whoever asked took so long."""
        if seconds > 0:
            self._draft = _steadied(self._draft, seconds)

    def of_pass(self, rows: int) -> float:
        """Seconds expected: those of the size nearest to it that is known, and A_ROW for the
        difference."""
        if not self._passes:
            return 1 + A_ROW * (rows - 1)
        size = min(self._passes, key=lambda known: abs(known - _size(rows)))
        if size == _size(rows):
            return self._passes[size]
        expected = (1 + A_ROW * (rows - 1)) / (1 + A_ROW * ((1 << size) - 1))
        return self._passes[size] * expected

    def of_draft(self) -> float:
        """Seconds expected of a model's draft."""
        return A_DRAFT * self.of_pass(1) if self._draft is None else self._draft


def _size(rows: int) -> int:
    return (rows - 1).bit_length()


def _steadied(old: float | None, new: float) -> float:
    return new if old is None else averaged(old, min(new, OUTLIER * old))
