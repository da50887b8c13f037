"""Requests of all kinds over both protocols, and how each of them ended for its client."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tandem.metrics import LOST
from tandem.serving import Endpoints
from tandem_client import AsyncGrpcClient, AsyncHttpClient, InvalidArgument, TandemError
from tandem_client.base import AsyncClient

PATIENCE_S = 300.0  # for an answer; a request that takes longer is lost
LATEST_LEAVE_S = 0.5
STALL_S = 2.0
BURST_S = 0.1  # of a rate's requests, at most, are sent at once

Manner = Literal["read", "stall", "leave before", "leave after"]
# "leave before": at any moment, most often before the first token; "leave after" some tokens.
MANNERS: Mapping[Manner, float] = {
    "read": 0.36,
    "stall": 0.04,
    "leave before": 0.35,
    "leave after": 0.25,
}
SHARE_OF_BAD = 0.08
SHARE_OF_PENALIZED = 0.2
PROMPTS = (
    "def main(argv):\n",
    "import os\n",
    "class Parser:\n    def __init__(self",
    "x = [1, 2, 3]\n" * 20,
    "for line in lines:\n    print(line)\n" * 40,
)
BAD: tuple[tuple[str | Sequence[int], Mapping[str, Any]], ...] = (
    ("", {}),
    ("a", {"max_tokens": 0}),
    ("a", {"temperature": -1.0}),
    ("a", {"top_p": 2.0}),
    ("a", {"stop_token_ids": [1 << 20]}),
    ([1 << 20], {}),
    ("word " * 4000, {}),
)
REFUSALS = {
    "max_queue_size": "queue_full",
    "queue_timeout": "timeout",
    "timeout of": "timeout",
    "send the request again": LOST,
    "is restarting": LOST,
}
AGAIN_S = 0.2  # after which a client whose request was lost with the engine sends another


class Ask(NamedTuple):
    """What a client does."""

    grpc: bool
    prompt: str | Sequence[int]
    params: Mapping[str, Any]
    manner: Manner
    seconds: float
    """Until it leaves, or for which it stalls."""
    chunks: int
    """After which it leaves or stalls."""


def any_ask(chance: random.Random) -> Ask:
    """A request as some client might send it."""
    prompt: str | Sequence[int] = chance.choice(PROMPTS)
    params: dict[str, Any] = {
        "max_tokens": chance.choice([1, 8, 8, 32, 32, 64, 200]),
        "temperature": chance.choice([0.0, 0.0, 0.7, 1.0]),
        "ignore_eos": chance.random() < 0.9,
        "num_draft_tokens": chance.choice([None, None, 0, 2]),
    }
    if params["temperature"] and chance.random() < 0.3:
        params["seed"] = chance.randrange(100)
    if chance.random() < SHARE_OF_PENALIZED:
        params |= {"repetition_penalty": 1.1, "logit_bias": {chance.randrange(256): -1.0}}
    manner = chance.choices(list(MANNERS), list(MANNERS.values()))[0]
    if chance.random() < SHARE_OF_BAD:
        prompt, wrong = chance.choice(BAD)
        params, manner = {**params, **wrong}, "read"
    if manner.startswith("leave"):
        params["max_tokens"] = 400  # so that there is something to leave
    seconds = STALL_S if manner == "stall" else chance.random() ** 2 * LATEST_LEAVE_S
    grpc = chance.random() < 0.5
    return Ask(grpc, prompt, params, manner, seconds, chance.choice([1, 1, 2, 5]))


class Ends:
    """How requests ended, from the clients' side."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.left_begun = 0
        """Of those that left: how many had had a part of their answer."""
        self.odd: list[str] = []
        """What should not have happened."""
        self.refused_s: list[float] = []
        """What refusals for a full queue took."""

    @property
    def total(self) -> int:
        return self.counts.total()

    def add(self, error: TandemError, seconds: float) -> str:
        """A request that was answered with an error, which took so long; which one."""
        text = str(error)
        known = (outcome for words, outcome in REFUSALS.items() if words in text)
        outcome = "invalid" if isinstance(error, InvalidArgument) else next(known, "lost")
        self.counts[outcome] += 1
        if outcome == "queue_full":
            self.refused_s.append(seconds)
        if outcome == "lost":
            self.odd.append(f"{type(error).__name__}: {text}")
        return outcome


async def send(client: AsyncClient, ask: Ask, ends: Ends) -> None:
    """One request from its beginning to its end, which is counted."""
    reading, begun = asyncio.create_task(_read(client, ask)), time.monotonic()
    try:
        if ask.manner == "leave before":
            await asyncio.wait({reading}, timeout=ask.seconds)
            reading.cancel()
        reason = await asyncio.wait_for(reading, PATIENCE_S)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # not the request's end: that of the traffic
            reading.cancel()
            raise
        ends.counts["left"] += 1
    except TimeoutError:
        ends.counts["lost"] += 1
        ends.odd.append(f"no end within {PATIENCE_S:g} s: {ask}")
    except TandemError as error:
        if ends.add(error, time.monotonic() - begun) == LOST:
            await asyncio.sleep(AGAIN_S)
    else:
        ends.counts[reason] += 1
        ends.left_begun += reason == "left"


async def _read(client: AsyncClient, ask: Ask) -> str:
    """The finish reason, or `left`."""
    chunks = 0
    async with client.stream(ask.prompt, ask.params) as stream:
        async for chunk in stream:
            chunks += 1
            if chunk.finish_reason is not None:
                reason = chunk.finish_reason
            elif chunks == ask.chunks and ask.manner == "leave after":
                return "left"
            elif chunks == ask.chunks and ask.manner == "stall":
                await asyncio.sleep(ask.seconds)
    return reason


async def closed_loop(
    urls: Endpoints,
    model: str,
    next_ask: Callable[[], Ask | None],
    concurrency: int,
    ends: Ends,
    tick: Callable[[], None],
) -> None:
    """So many requests at a time until there is none left. tick: called after each."""

    async def work(grpc: AsyncClient, http: AsyncClient) -> None:
        while (ask := next_ask()) is not None:
            await send(grpc if ask.grpc else http, ask, ends)
            tick()

    async with AsyncGrpcClient(urls.grpc, model) as grpc, AsyncHttpClient(urls.http, model) as http:
        await asyncio.gather(*(work(grpc, http) for _ in range(concurrency)))


async def open_loop(
    urls: Endpoints,
    model: str,
    next_ask: Callable[[], Ask],
    rate: float,
    seconds: float,
    ends: Ends,
    tick: Callable[[], None],
) -> None:
    """So many requests a second, whatever becomes of those before; returns when all have ended.
    tick: called after each.

    What was held up here is not made up for beyond BURST_S: that would be a burst, not a rate.
    """
    async with AsyncGrpcClient(urls.grpc, model) as grpc, AsyncHttpClient(urls.http, model) as http:
        begun, due = time.monotonic(), 0.0
        tasks: set[asyncio.Task[None]] = set()
        while (passed := time.monotonic() - begun) < seconds:
            due = max(due, (passed - BURST_S) * rate)
            while due < passed * rate:
                ask, due = next_ask(), due + 1
                tasks.add(task := asyncio.create_task(send(grpc if ask.grpc else http, ask, ends)))
                task.add_done_callback(lambda _: tick())
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)
