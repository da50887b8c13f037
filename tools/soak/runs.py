"""The three long runs, each from a server's start to its end."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
from tritonclient.grpc import InferenceServerClient

from tandem.serving import Endpoints, ServerOptions, TritonServer
from tandem.serving.overrides import overridden
from tandem_client import GrpcClient
from tools.soak.account import Account, read, settled, troubles
from tools.soak.health import Asked, health_asked, too_slow
from tools.soak.traffic import Ask, Ends, any_ask, closed_loop, open_loop
from tools.soak.watch import MIB, Footprint, Sample, Trend, Watch, footprint, trend

REPOSITORY = Path(__file__).parents[2] / "model_repository"
# A pool that holds few of the requests, so that they are preempted too.
CROWDED = {"kv_cache_memory": "12MiB", "max_model_len": "640"}
# (The pool is small for another reason too: memory of a large one is used little by little.)
OVERLOADED = {"kv_cache_memory": "32MiB", "max_queue_size": "64", "queue_timeout": "20"}
UNLOAD_S = 60.0
Tick = Callable[[], None]


class Result(NamedTuple):
    """Of a run."""

    clients: Mapping[str, int]
    server: Account
    trends: Mapping[str, Trend]
    """Of memory, by process."""
    samples: Mapping[str, list[Sample]]
    before: Footprint
    after: Footprint
    health: list[Asked]
    """How long the server took to say that it is ready, where this was measured."""
    troubles: list[str]
    """What is wrong, a sentence each."""


@contextmanager
def served(model: str, settings: Mapping[str, str], log: Path | None) -> Iterator[TritonServer]:
    """A server with one model."""
    with (
        overridden(REPOSITORY, (model,), settings) as repository,
        TritonServer(ServerOptions(repository, (model,), log_path=log)) as server,
    ):
        yield server


def soak(
    model: str,
    requests: int,
    minutes: float,
    concurrency: int,
    seed: int = 0,
    tick: Tick = lambda: None,
    log: Path | None = None,
) -> Result:
    """Mixed traffic until so many requests were sent or the time is over."""
    end = time.monotonic() + 60 * minutes
    numbers = iter(range(requests))

    def next_ask() -> Ask | None:
        number = next(numbers, None) if time.monotonic() < end else None
        return None if number is None else any_ask(random.Random(f"{seed} {number}"))

    async def run(urls: Endpoints, ends: Ends) -> None:
        await closed_loop(urls, model, next_ask, concurrency, ends, tick)

    with served(model, CROWDED, log) as server:
        return _run(server, run)


def overload(
    model: str,
    factor: float,
    seconds: float,
    tick: Tick = lambda: None,
    log: Path | None = None,
    niceness: int = 0,
) -> Result:
    """Many times the requests that the server can answer, which is measured before. niceness: of
    the thread that is the clients, from this load on: clients on other machines would not take the
    server's cores."""

    def ask() -> Ask:
        return Ask(True, "def main(argv):\n", {"max_tokens": 32, "ignore_eos": True}, "read", 0, 0)

    health: list[Asked] = []
    lost: list[str] = []

    async def run(urls: Endpoints, ends: Ends) -> None:
        begun = time.monotonic()
        until = begun + max(seconds / 3, 5)
        fitting = Ends()
        await closed_loop(
            urls, model, lambda: ask() if time.monotonic() < until else None, 16, fitting, tick
        )
        rate = fitting.total / (time.monotonic() - begun)
        with health_asked(urls.http, health, lost):
            os.nice(niceness)
            await open_loop(urls, model, ask, factor * rate, seconds, ends)
        ends.counts += fitting.counts
        ends.odd += fitting.odd

    with served(model, OVERLOADED, log) as server:
        result = _run(server, run)
    return result._replace(health=health, troubles=result.troubles + lost[:10] + too_slow(health))


def _run(server: TritonServer, run: Callable[[Endpoints, Ends], object]) -> Result:
    """Traffic between two accounts, under watch."""
    urls, ends = server.endpoints, Ends()
    with GrpcClient(urls.grpc, server.options.models[0]) as client:
        client.generate("a", max_tokens=1)
    begin, before = settled(urls.metrics), footprint(server)
    with Watch(server) as watch:
        asyncio.run(run(urls, ends))  # type: ignore[arg-type]
        account = settled(urls.metrics).since(begin)
    trends = {name: trend(samples) for name, samples in watch.samples.items() if samples[1:]}
    after = footprint(server)
    found = troubles(ends, account)
    found += [
        f"The memory of {name} grew by {one.growth_mib:.0f} MiB in the second half."
        for name, one in trends.items()
        if not one.flat
    ]
    if after.processes != before.processes:
        found.append(f"There were {before.processes} processes, and now are {after.processes}.")
    return Result(ends.counts, account, trends, watch.samples, before, after, [], found)


def reloads(model: str, times: int, tick: Tick = lambda: None, log: Path | None = None) -> Result:
    """Loads, answers and unloads, again and again."""
    name = "tritonserver"
    samples: list[Sample] = []
    prints: list[Footprint] = []
    with served(model, {}, log) as server, InferenceServerClient(server.endpoints.grpc) as control:
        begin = read(server.endpoints.metrics)
        triton = psutil.Process(server.pid)
        for number in range(times):
            control.load_model(model)
            if number % 5 == 1:
                control.load_model(model)
            with GrpcClient(server.endpoints.grpc, model) as client:
                client.generate("def main():", max_tokens=8)
            control.unload_model(model)
            prints.append(_unloaded(server, prints[0] if prints else None))
            samples.append(Sample(number, triton.memory_info().rss / MIB))
            tick()
        account = read(server.endpoints.metrics).since(begin)
    grown = trend(samples)
    found = [] if grown.flat else [f"Triton grew by {grown.growth_mib:.0f} MiB in the second half."]
    if prints[-1] != prints[0]:
        found.append(f"After the first unload there was {prints[0]}, at last {prints[-1]}.")
    ends = {"answered": times}
    return Result(ends, account, {name: grown}, {name: samples}, prints[0], prints[-1], [], found)


def _unloaded(server: TritonServer, usual: Footprint | None) -> Footprint:
    """What is left of a model whose processes end and whose shared memory goes: as much as usual,
    or what does not change any more."""
    end, before = time.monotonic() + UNLOAD_S, None
    while time.monotonic() < end:
        now = footprint(server)
        if now.processes == 1 and now == (usual or before):
            return now
        before = now
        time.sleep(0.5)
    return footprint(server)
