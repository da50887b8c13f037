"""The server's own account, from /metrics, held against that of its clients."""

from __future__ import annotations

import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tandem.metrics import (
    FAILED,
    FINISHED,
    FRONT_REFUSED,
    INTERNAL,
    KV_USAGE,
    LOST,
    PREEMPTIONS,
    RESTARTS,
    RUNNING,
    UNLOADED,
    UP,
    WAITING,
)
from tools.soak.traffic import Ends

QUIET_S = 120.0  # for what clients left behind to end
REPORTED_S = 2.5  # behind which what is counted is on /metrics


class Account(NamedTuple):
    """Counters and gauges of one load of the model."""

    outcomes: Mapping[str, int]
    """Requests by finish reason, or by the reason of their failure."""
    busy: float
    """Requests running or waiting, and the shares of KV caches in use."""
    preemptions: int
    restarts: int
    up: bool = True
    """Whether the engine takes requests."""

    def since(self, before: Account) -> Account:
        """What has come since."""
        outcomes = Counter(self.outcomes)
        outcomes.subtract(before.outcomes)
        return Account(
            {name: count for name, count in outcomes.items() if count},
            self.busy,
            self.preemptions - before.preemptions,
            self.restarts - before.restarts,
            self.up,
        )


def shown(metrics_url: str) -> str:
    """What is on /metrics."""
    with urllib.request.urlopen(f"http://{metrics_url}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def read(metrics_url: str) -> Account:
    """The account now."""
    text = shown(metrics_url)
    outcomes: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] += sample.value  # type: ignore[assignment]
            if sample.name == FINISHED:
                outcomes[sample.labels["finished_reason"]] += int(sample.value)
            elif sample.name in (FAILED, FRONT_REFUSED.name):
                outcomes[sample.labels["reason"]] += int(sample.value)
    busy = sums[RUNNING] + sums[WAITING] + sums[KV_USAGE]
    return Account(outcomes, busy, int(sums[PREEMPTIONS]), int(sums[RESTARTS]), bool(sums[UP]))


def settled(metrics_url: str) -> Account:
    """The account once the engine is up and nothing is running or changes, or after a long wait."""
    end, before = time.monotonic() + QUIET_S, None
    while True:
        time.sleep(REPORTED_S)
        account = read(metrics_url)
        if (account.up and not account.busy and account == before) or time.monotonic() > end:
            return account
        before = account


def troubles(ends: Ends, server: Account, kills: int = 0) -> list[str]:
    """What does not add up, a sentence each. kills: of the engine, or of a part of it.

    A client that leaves does not learn how its request ended, nor whether it arrived.
    """
    found = list(ends.odd[:10])
    if server.busy:
        found.append(f"The server is not idle: {server.busy:g} in use, running or waiting.")
    if not server.up:
        found.append("The engine takes no requests.")
    if server.restarts != kills:
        found.append(f"The engine was started again {server.restarts} times, and killed {kills}.")
    outcomes = {*ends.counts, *server.outcomes} - {"left", "lost"}
    more = {name: server.outcomes.get(name, 0) - ends.counts[name] for name in outcomes}
    for name, count in more.items():
        if count < 0:
            found.append(f"Clients had {-count} more answers '{name}' than the server counted.")
    for name in {"invalid", INTERNAL, UNLOADED, *([] if kills else [LOST])} & more.keys():
        if more[name]:
            found.append(f"The server counted {more[name]} more '{name}' than clients saw.")
    left = ends.counts["left"]
    if not ends.left_begun <= sum(more.values()) <= left:
        found.append(
            f"{left} clients left, {ends.left_begun} of them in the midst of an answer, but the "
            f"server counted {sum(more.values())} more ends than other clients saw."
        )
    return found
