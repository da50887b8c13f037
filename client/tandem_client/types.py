"""What comes back: chunks of a stream, and the completion they add up to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

# One entry a new token: {"<token id>": {"logprob", "rank", "decoded_token"}, …}
TokenLogprobs: TypeAlias = Mapping[str, Mapping[str, Any]]


class SpeculationStats(NamedTuple):
    """How speculation went over a whole request."""

    acceptance_rate: float
    drafted: int
    accepted: int
    rounds: int  # verification rounds in which something was drafted

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens a verification round yields: the accepted ones and the target's own."""
        return 1.0 + self.accepted / self.rounds if self.rounds else 1.0


@dataclass(frozen=True)
class Chunk:
    """One streamed response: the text and tokens added by it."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    drafted: tuple[bool, ...] = ()  # for each id: drafted and accepted, or the target's own
    num_tokens: int = 0
    finish_reason: str | None = None  # set on the last chunk
    logprobs: tuple[TokenLogprobs, ...] = ()
    num_input_tokens: int | None = None
    request_id: str | None = None  # what the server calls a request that was given an id
    stats: SpeculationStats | None = None  # on the last chunk


class Timing(NamedTuple):
    """The request as its client saw it, in seconds."""

    time_to_first_token: float
    total: float
    tokens_per_second: float


@dataclass(frozen=True)
class Completion:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    drafted: tuple[bool, ...]
    num_tokens: int
    finish_reason: str | None
    logprobs: tuple[TokenLogprobs, ...]
    num_input_tokens: int | None
    request_id: str | None
    stats: SpeculationStats | None
    timing: Timing
