"""What a model is asked for in some rounds."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from tandem.drafting.remembered import Choice, Known
from tandem.scheduler import Decode


class Further(NamedTuple):
    """How much further than planned a draft may go, where it ends by itself before tokens that do
    not pay."""

    times: float
    longest: int
    """Most tokens of a draft."""

    def want(self, decode: Decode, known: Known, choice: Choice, length: int) -> None:
        """Notes what is wanted for a request: of a draft for which so many tokens are planned."""
        known.room, known.wish = decode.lookahead, 0
        if choice.option.by_model:
            known.wish = min(ceil(self.times * length), self.longest)


NO_FURTHER = Further(1.0, 0)


class Asks(NamedTuple):
    """What a model is asked for, for as long as what is planned holds."""

    lengths: Sequence[int] = ()
    """Tokens for each request, at most."""
    places: Sequence[int] = ()
    """Of those for which there are any."""
    decodes: Sequence[Decode] = ()
    """As it is asked."""
    streaks: Sequence[int] = ()
    """For each that is on a streak, the tokens that it would be asked for otherwise; 0: it is
    not."""


def asks_of(decodes: Sequence[Decode], lengths: Sequence[int], streaks: Sequence[int] = ()) -> Asks:
    return Asks(
        lengths,
        [place for place, length in enumerate(lengths) if length],
        [Decode(one.request, length) for one, length in zip(decodes, lengths, strict=True)],
        streaks or [0] * len(lengths),
    )


def wanted(decodes: Sequence[Decode], requests: Sequence[Known], far: int, most: int) -> Asks:
    """What is wanted for each, where there is room for it. far: as in `Known.wants`; most: tokens
    of all together."""
    asked = [
        0 if one.request.states_lost else min(known.wants(far), one.lookahead)
        for one, known in zip(decodes, requests, strict=True)
    ]
    streaks = [known.wish if known.on_streak else 0 for known in requests]
    return asks_of(decodes, shared_out(asked, most), streaks)


def shared_out(asked: list[int], most: int) -> list[int]:
    """What is asked for, but no more than so many together: the longest become shorter, for each
    level takes its time."""
    longest = max(asked)
    while longest and sum(asked) > most:
        longest -= 1
        asked = [min(one, longest) for one in asked]
    return asked


NO_ASKS = Asks()
NO_BRIM = 1 << 30
