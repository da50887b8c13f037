"""What is counted and timed, for /metrics: its catalogue, and the meters of an engine's process.

Names are vLLM's where it has them, `tandem_` in the place of `vllm:`. An engine counts as it goes,
and its process sends what has come together about once a second (service_worker.py).
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 600)
"""Upper ends of a histogram's buckets for what requests take, and..."""
SECONDS_OF_A_STEP = (
    *(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075),
    *(0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5),
)
"""... for what steps do: a draft may take a twentieth of a step of two milliseconds."""
MOST_OF_STEPS = 64  # values of one histogram in one report, a random choice of all, ...
MOST_OF_REQUESTS = 1024  # ... and where there is one a request
MOST_HELD = 1 << 16  # until there is a report, which an engine in its user's process may never make


class Metric(NamedTuple):
    """A family on /metrics."""

    name: str
    kind: Kind
    help: str
    label: str = ""
    """Of its members, beside the model's name and version; empty: it has one."""
    values: tuple[str, ...] = ()
    """Of the label, as far as they are known beforehand."""
    buckets: tuple[float, ...] = ()
    """Upper ends, of a histogram."""
    at_once: bool = True
    """Whether it is there before there is something to say."""

    @property
    def members(self) -> list[Key]:
        """Those that are there from the beginning, at 0: a rate has to begin at something."""
        known = self.values if self.label else ("",)
        return [Key(self.name, value) for value in known if self.at_once]


class Key(NamedTuple):
    """A member of a family."""

    name: str
    label: str = ""


ROUNDS = "tandem_decode_rounds_total"
DRAFTS = "tandem_spec_decode_num_drafts_total"
DRAFT_TOKENS = "tandem_spec_decode_num_draft_tokens_total"
DRAFT_POSITIONS = "tandem_spec_decode_num_draft_positions_total"
ACCEPTED_TOKENS = "tandem_spec_decode_num_accepted_tokens_total"
ACCEPTED_PER_POSITION = "tandem_spec_decode_num_accepted_tokens_per_pos_total"
FINISHED = "tandem_request_success_total"
FAILED = "tandem_request_failure_total"
PROMPT_TOKENS = "tandem_prompt_tokens_total"
GENERATED_TOKENS = "tandem_generation_tokens_total"
PREEMPTIONS = "tandem_num_preemptions_total"
PREFIX_QUERIES = "tandem_prefix_cache_queries_total"
PREFIX_HITS = "tandem_prefix_cache_hits_total"
RUNNING = "tandem_num_requests_running"
WAITING = "tandem_num_requests_waiting"
KV_USAGE = "tandem_kv_cache_usage_perc"
LENGTH = "tandem_spec_decode_length"
ACCEPTANCE_RATE = "tandem_spec_decode_acceptance_rate"
ACCEPTANCE_LENGTH = "tandem_spec_decode_mean_acceptance_length"
EFFICIENCY = "tandem_spec_decode_block_efficiency"
MOST_EFFICIENCY = "tandem_spec_decode_max_block_efficiency"
UP = "tandem_engine_up"
HEARTBEAT = "tandem_heartbeat_timestamp_seconds"
RESTARTS = "tandem_engine_restarts_total"
FIRST_TOKEN = "tandem_time_to_first_token_seconds"
BETWEEN_TOKENS = "tandem_inter_token_latency_seconds"
END_TO_END = "tandem_e2e_request_latency_seconds"
QUEUED = "tandem_request_queue_time_seconds"
DRAFTING = "tandem_spec_decode_draft_time_seconds"
VERIFYING = "tandem_spec_decode_verify_time_seconds"

INTERNAL = "internal"
UNLOADED = "unloaded"
LOST = "engine_lost"
REFUSALS = {
    "InvalidRequestError": "invalid",
    "QueueFullError": "queue_full",
    "RequestTimeoutError": "timeout",
}
"""What `FAILED` calls a refusal."""


def _times(name: str, help: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(name, "histogram", help, buckets=buckets)


def _of_drafts(name: str, help: str) -> Metric:
    """Nothing is told before something was drafted: 0 would mean that nothing was kept."""
    return Metric(name, "gauge", help, at_once=False)


CATALOGUE = (
    Metric(ROUNDS, "counter", "Rounds of a request that decodes, with a draft or without."),
    Metric(DRAFTS, "counter", "Rounds of a request in which tokens were drafted."),
    Metric(DRAFT_TOKENS, "counter", "Tokens drafted."),
    Metric(
        DRAFT_POSITIONS,
        "counter",
        "Places in the text that drafts reached: of a chain its tokens, of a tree its depth.",
    ),
    Metric(ACCEPTED_TOKENS, "counter", "Drafted tokens that the target kept."),
    Metric(
        ACCEPTED_PER_POSITION,
        "counter",
        "Drafted tokens that the target kept, by their place in the draft (0: the first).",
        "position",
    ),
    Metric(
        FINISHED,
        "counter",
        "Requests that ended, by why.",
        "finished_reason",
        ("stop", "length", "abort"),
    ),
    Metric(
        FAILED,
        "counter",
        "Requests that were refused or lost, by why.",
        "reason",
        (*REFUSALS.values(), UNLOADED, LOST, INTERNAL),
    ),
    Metric(PROMPT_TOKENS, "counter", "Prompt tokens of requests that have begun to answer."),
    Metric(GENERATED_TOKENS, "counter", "Tokens generated."),
    Metric(PREEMPTIONS, "counter", "Requests that lost their KV cache to others."),
    Metric(PREFIX_QUERIES, "counter", "Prompt tokens looked up in the prefix cache."),
    Metric(PREFIX_HITS, "counter", "Prompt tokens found in the prefix cache."),
    Metric(RESTARTS, "counter", "Times that the engine's process was started again."),
    Metric(RUNNING, "gauge", "Requests that are computed."),
    Metric(WAITING, "gauge", "Requests that wait to be tokenized, or in the queue."),
    Metric(KV_USAGE, "gauge", "Share of the KV cache in use, 0 to 1, by runner.", "runner"),
    Metric(LENGTH, "gauge", "Tokens drafted a round of a request, of late; 0: none are."),
    _of_drafts(ACCEPTANCE_RATE, "Share of drafted tokens that were kept, of late."),
    _of_drafts(ACCEPTANCE_LENGTH, "Tokens that a drafting round yields, of late."),
    Metric(
        EFFICIENCY,
        "gauge",
        "Tokens that a pass of the target yields a request, of late; 1: as without drafts.",
    ),
    Metric(
        MOST_EFFICIENCY,
        "gauge",
        "The most that it could yield: if all that was drafted, of a tree its longest path, were "
        "kept.",
    ),
    Metric(UP, "gauge", "Whether the engine takes requests."),
    Metric(HEARTBEAT, "gauge", "Unix time by the model's process, while there is one."),
    _times(FIRST_TOKEN, "From a request's arrival to its first token.", SECONDS),
    _times(
        BETWEEN_TOKENS,
        "From a request's last tokens to its next ones, by how many they are, of each of these.",
        SECONDS_OF_A_STEP,
    ),
    _times(END_TO_END, "From the arrival of a request that is answered whole to its end.", SECONDS),
    _times(QUEUED, "From a request's arrival to its first computation.", SECONDS),
    _times(DRAFTING, "Drafting, of a step that drafts.", SECONDS_OF_A_STEP),
    _times(VERIFYING, "The target's pass and its verification, of a step.", SECONDS_OF_A_STEP),
)

FRONT_REFUSED = Metric(
    "tandem_front_refusal_total",
    "counter",
    "Requests that the front has refused by itself, by why.",
    "reason",
    ("invalid", "queue_full", "no_room", "not_let_in"),
)
"""Of no model: the front counts these, and adds them to what Triton shows."""

OF_REQUESTS = frozenset({FIRST_TOKEN, END_TO_END, QUEUED})
"""Histograms with one value a request; all others have one for each step or answer."""


class Report(NamedTuple):
    """What has come together since the last report."""

    counts: Mapping[Key, float]
    gauges: Mapping[Key, float]
    observed: Mapping[str, list[float]]
    """Values of each histogram, all or a choice."""


def counted(name: str, by: float = 1, label: str = "") -> Report:
    """A report of one counter."""
    return Report({Key(name, label): by}, {}, {})


def standing(up: bool, runners: Iterable[str] = ()) -> Report:
    """A report of whether the engine takes requests. When it begins or has ended it holds none, and
    nothing of its runners' KV caches is in use."""
    holds = {Key(RUNNING): 0.0, Key(WAITING): 0.0} | {Key(KV_USAGE, one): 0.0 for one in runners}
    return Report({}, {Key(UP): float(up)} | holds, {})


class Meters:
    """Counts and times in the engine's thread."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        """By what becomes a `Key`, of which making one takes as long as all else here."""
        self._rounds: Counter[tuple[int, int, int]] = Counter()
        self._observed: defaultdict[str, deque[float]] = defaultdict(_latest)

    def count(self, name: str, by: float = 1, label: str = "") -> None:
        """Adds to a counter."""
        self._counts[name, label] += by  # type: ignore[assignment]

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Adds to a histogram, so many times."""
        if times == 1:
            self._observed[name].append(value)
        else:
            self._observed[name].extend([value] * times)

    def round(self, drafted: int, accepted: int, depth: int | None = None) -> None:
        """A request's round in which something was drafted. depth: of the draft; None: it was a
        chain."""
        self._rounds[drafted, accepted, drafted if depth is None else depth] += 1

    def report(self, gauges: Mapping[Key, float]) -> Report:
        """All since the last report, with how things stand."""
        for (drafted, accepted, depth), times in self._rounds.items():
            self.count(DRAFTS, times)
            self.count(DRAFT_TOKENS, times * drafted)
            self.count(DRAFT_POSITIONS, times * depth)
            self.count(ACCEPTED_TOKENS, times * accepted)
            for position in range(accepted):
                self.count(ACCEPTED_PER_POSITION, times, str(position))
        counts = {Key(*key): value for key, value in self._counts.items() if value}
        observed = {name: _some(name, values) for name, values in self._observed.items()}
        self._clear()
        return Report(counts, gauges, observed)


def _latest() -> deque[float]:
    return deque(maxlen=MOST_HELD)


def _some(name: str, values: Sequence[float]) -> list[float]:
    """A histogram's values, or of too many a random choice."""
    most = MOST_OF_REQUESTS if name in OF_REQUESTS else MOST_OF_STEPS
    return list(values) if len(values) <= most else random.sample(values, most)


def merged(reports: Iterable[Report]) -> Report:
    """Reports one after the other as one."""
    counts: Counter[Key] = Counter()
    gauges: dict[Key, float] = {}
    observed: dict[str, list[float]] = {}
    for report in reports:
        counts.update(report.counts)
        gauges |= report.gauges
        for name, values in report.observed.items():
            observed.setdefault(name, []).extend(values)
    return Report(counts, gauges, observed)


class _Speculated(NamedTuple):
    """Sums over rounds."""

    rounds: float = 0.0
    drafts: float = 0.0
    drafted: float = 0.0
    positions: float = 0.0
    accepted: float = 0.0

    def with_(self, new: _Speculated, faded: float) -> _Speculated:
        """Both, these counting for less."""
        return _Speculated(*[faded * a + b for a, b in zip(self, new, strict=True)])


class Recent:
    """Speculation of late: rates over the last rounds, whatever the time between them."""

    HALVED_AFTER = 1000.0  # rounds behind which one counts half

    def __init__(self) -> None:
        self._rounds = _Speculated()
        self._drafts = _Speculated()
        """Which have not faded by rounds without drafts."""

    def gauges(self, counts: Mapping[Key, float]) -> dict[Key, float]:
        """The rates, with these counts taken in; those of drafts once something was drafted."""
        names = (ROUNDS, DRAFTS, DRAFT_TOKENS, DRAFT_POSITIONS, ACCEPTED_TOKENS)
        new = _Speculated(*[counts.get(Key(name), 0.0) for name in names])
        self._rounds = self._rounds.with_(new, self._faded(new.rounds))
        self._drafts = self._drafts.with_(new, self._faded(new.drafts))
        return self._of_rounds() | self._of_drafts()

    def _faded(self, rounds: float) -> float:
        """What the rounds before count for."""
        return 0.5 ** (rounds / self.HALVED_AFTER)

    def _of_rounds(self) -> dict[Key, float]:
        of = self._rounds
        if not of.rounds:
            return {}
        return {
            Key(LENGTH): of.drafted / of.rounds,
            Key(EFFICIENCY): 1 + of.accepted / of.rounds,
            Key(MOST_EFFICIENCY): 1 + of.positions / of.rounds,
        }

    def _of_drafts(self) -> dict[Key, float]:
        of = self._drafts
        if not of.drafted:
            return {}
        return {
            Key(ACCEPTANCE_RATE): of.accepted / of.drafted,
            Key(ACCEPTANCE_LENGTH): 1 + of.accepted / of.drafts,
        }
