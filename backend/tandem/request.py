"""What a user asks for and gets: sampling parameters, a request's state, its outputs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from tandem.errors import InvalidRequestError
from tandem.validation import no_bool, sentences, short

Int = Annotated[int, BeforeValidator(no_bool)]
Float = Annotated[float, BeforeValidator(no_bool)]
Prompt = str | Sequence[int]  # a text, or its token ids
FinishReason = Literal["stop", "length", "abort"]
GREEDY_BELOW = 1e-5  # temperatures under it mean greedy, as in vLLM
SEED_LIMIT = 1 << 63
MOST_PRIORITY = 1_000_000
# So that one request does not cost all others, who share its steps, much of their time.
MOST_STOPS = 32
LONGEST_STOP = 256  # characters
MOST_BAD_WORDS = 128
LONGEST_BAD_WORD = 128  # characters
MOST_TOKEN_IDS = 1024
T = TypeVar("T")


def _as_count(value: Any) -> Any:
    """`logprobs` may be true, for the chosen token's and the best one's, or false, as in OpenAI's
    chats."""
    return (1 if value else None) if isinstance(value, bool) else value


def _as_list(value: Any) -> Any:
    """`stop` may be one string or a list of them."""
    return [value] if isinstance(value, str) else value


class SamplingParams(BaseModel):
    """How the next token is drawn. Names and defaults are vLLM's; numbers may be strings.

    Raises `InvalidRequestError`, one sentence, for an unknown key or a value out of range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_tokens: Annotated[Int, Field(ge=1)] | None = 16
    """None: until the model's length limit."""
    min_tokens: Annotated[Int, Field(ge=0)] = 0
    temperature: Annotated[Float, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[Float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[Int, Field(ge=-1)] = 0
    """0 and -1: off."""
    min_p: Annotated[Float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[Int, Field(ge=-SEED_LIMIT, lt=SEED_LIMIT)] | None = None
    """With a seed the text is a function of prompt, parameters and seed alone."""
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]],
        Field(max_length=MOST_STOPS),
        BeforeValidator(_as_list),
    ] = []
    stop_token_ids: Annotated[
        list[Annotated[Int, Field(ge=0)]], Field(max_length=MOST_TOKEN_IDS)
    ] = []
    ignore_eos: bool = False
    presence_penalty: Annotated[Float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[Float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[Float, Field(gt=0, le=100)] = 1.0
    logit_bias: Annotated[
        dict[Annotated[Int, Field(ge=0)], Annotated[Float, Field(ge=-100, le=100)]],
        Field(max_length=MOST_TOKEN_IDS),
    ] = {}
    logprobs: Annotated[Annotated[int, Field(ge=0, le=20)] | None, BeforeValidator(_as_count)] = (
        None
    )
    n: Annotated[Int, Field(ge=1, le=1)] = 1
    best_of: Annotated[Int, Field(ge=1, le=1)] = 1
    bad_words: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=LONGEST_BAD_WORD)]],
        Field(max_length=MOST_BAD_WORDS),
    ] = []
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    num_draft_tokens: Annotated[Int, Field(ge=0)] | None = None
    """Most drafted tokens a round for this request; 0: no speculation; None: the engine's."""
    speculative_method: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Of the methods that the model was loaded with the one that drafts; `none`: no speculation."""
    priority: Annotated[Int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] = 0
    """Lower ones are served first; equal ones as they come."""
    timeout: Annotated[Float, Field(gt=0, le=1e6)] | None = None
    """Most seconds from arrival to the end; None: as long as it takes."""

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            known = type(self).model_fields
            raise InvalidRequestError(sentences(error, "sampling parameter", known)) from None
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens is {short(self.min_tokens)} but max_tokens is "
                f"{short(self.max_tokens)}: make the minimum no larger than the maximum."
            )

    @property
    def most_drafted(self) -> int | None:
        """Tokens a round; None: as many as the engine drafts."""
        return 0 if self.speculative_method == "none" else self.num_draft_tokens

    @cached_property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @cached_property
    def penalized(self) -> bool:
        return bool(
            self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        )

    @cached_property
    def edits_logits(self) -> bool:
        """True where logits depend on more than the model: history, biases, bans."""
        return bool(self.penalized or self.logit_bias or self.min_tokens or self.bad_words)

    @cached_property
    def truncates(self) -> bool:
        """Some tokens are ruled out for being unlikely."""
        return not self.greedy and (self.min_p > 0 or self.top_k > 0 or self.top_p < 1)

    @cached_property
    def takes_best(self) -> bool:
        """The next token is the one of the largest logit."""
        return self.greedy and not self.edits_logits


class SpeculationStats(NamedTuple):
    """What speculation did for a request."""

    drafted: int = 0
    """Tokens proposed."""
    accepted: int = 0
    """Proposed tokens that the target kept."""
    rounds: int = 0
    """Verification rounds with at least one proposed token."""

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens a drafted round yields: accepted ones and the target's own."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0

    def plus(self, other: SpeculationStats) -> SpeculationStats:
        """Both together."""
        drafted, accepted, rounds = other
        return SpeculationStats(
            self.drafted + drafted, self.accepted + accepted, self.rounds + rounds
        )


NO_SPECULATION = SpeculationStats()


class TokenLogprobs(NamedTuple):
    """Log-probabilities at one output position, of the model's own distribution."""

    sampled: int
    entries: dict[int, tuple[float, int, str]]
    """token id -> (log-probability, rank from 1, text)"""


@dataclass(slots=True)
class RequestOutput:
    """What a step added to a request. Deltas, except `stats` and the counts."""

    request_id: str
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    """For each token: drafted and accepted (True), or the target's own draw (False)."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_prompt_tokens: int = 0
    cumulative_logprob: float = 0.0
    """Sum over all tokens so far, where logprobs were asked for."""
    stats: SpeculationStats = NO_SPECULATION
    """So far, whole request."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def merge(self, later: RequestOutput) -> None:
        """Appends the deltas of a later output of the same request."""
        self.text += later.text
        self.token_ids += later.token_ids
        self.drafted += later.drafted
        self.logprobs += later.logprobs
        self.finish_reason = later.finish_reason
        self.cumulative_logprob = later.cumulative_logprob
        self.stats = later.stats


class Banned:
    """Token sequences that must not be completed."""

    def __init__(self, sequences: Sequence[Sequence[int]] = ()) -> None:
        """Of one token or more each."""
        self._ends: dict[tuple[int, ...], list[int]] = {}
        for *begin, last in sequences:
            self._ends.setdefault(tuple(begin), []).append(last)
        self._lengths = sorted({len(begin) for begin in self._ends})

    def __bool__(self) -> bool:
        return bool(self._ends)

    def next(self, request: Request, drafted: Sequence[int]) -> list[int]:
        """What must not follow the request's output and the tokens drafted behind it. Looked up by
        the last few tokens: of sequences there may be hundreds."""
        found: list[int] = []
        written = request.num_output + len(drafted)
        for count in self._lengths:
            if count <= written:
                kept = max(0, count - len(drafted))
                before = request.tokens[len(request.tokens) - kept :]
                begin = (*before, *drafted[len(drafted) - count + kept :])
                found += self._ends.get(begin, ())
        return found


NOTHING_BANNED = Banned()


@dataclass(eq=False, slots=True, weakref_slot=True)
class Request:
    """A request inside the engine. The scheduler and the engine's commit change it."""

    id: str
    tokens: list[int]
    """Prompt and output."""
    num_prompt: int
    params: SamplingParams
    seed: int | None
    """Key of coupled sampling; None: drawn from the engine's generator."""
    max_total: int
    """Most tokens of prompt and output together."""
    stop_ids: frozenset[int]
    """Token ids that end the request (end of sequence, stop_token_ids)."""
    banned: Banned = NOTHING_BANNED
    """From bad_words."""
    arrival: float = field(default_factory=time.monotonic)
    """By `time.monotonic`."""
    admitted: float | None = None
    """When it was first computed; None: not yet, or nobody knows."""

    computed: int = 0
    """Leading tokens whose KV the target holds (set by the engine's commit)."""
    draft_computed: int = 0
    """Leading tokens whose KV the draft holds (set by the proposer)."""
    states_lost: bool = False
    """Whether the target's hidden states of some of its text have not been kept, so that no head
    can draft for it (set by the proposer, and where it adopts such text)."""
    blocks: list[int] = field(default_factory=list)
    """Block table (set by the block manager)."""
    block_keys: list[int] = field(default_factory=list)
    """Content keys of the leading full blocks (set by the block manager)."""
    stats: SpeculationStats = NO_SPECULATION
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    preemptions: int = 0
    notes: dict[object, Any] = field(default_factory=dict)
    """See `Notes`."""

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def bans(self) -> bool:
        """Whether tokens are ruled out for what was written before them."""
        least = self.params.min_tokens
        ends_banned = least > 0 and self.num_output < least and bool(self.stop_ids)
        return bool(self.banned) or ends_banned

    @property
    def decoding(self) -> bool:
        """All but the last token are in the target's KV."""
        return len(self.tokens) - self.computed == 1


class Notes(Generic[T]):
    """What one part of the engine keeps about each request. It goes when the request goes."""

    def get(self, request: Request) -> T | None:
        """None: nothing was kept."""
        return request.notes.get(self)

    def __getitem__(self, request: Request) -> T:
        kept: T = request.notes[self]
        return kept

    def __setitem__(self, request: Request, kept: T) -> None:
        request.notes[self] = kept

    def pop(self, request: Request) -> T | None:
        """What was kept, and is not any more."""
        return request.notes.pop(self, None)
