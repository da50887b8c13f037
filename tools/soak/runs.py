"""The long runs, each from a server's start to its end."""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from tandem.models.layers import computes_in
from tandem.serving import Endpoints, ServerOptions, TritonServer
from tandem.serving.front_process import FrontProcess, front_before
from tandem.serving.overrides import overridden
from tandem_client import GrpcClient
from tools.soak.account import Account, read, settled, troubles
from tools.soak.cores import cores_apart, on_cores
from tools.soak.health import Asked, health_asked, too_slow
from tools.soak.shared_memory import SharedMemory
from tools.soak.traffic import Ask, Ends, any_ask, closed_loop, open_loop
from tools.soak.watch import (
    ONCE_MIB,
    Footprint,
    Sample,
    Trend,
    Watch,
    footprint,
    parts_of_engine,
    role,
    trend,
)

REPOSITORY = Path(__file__).parents[2] / "model_repository"
# A pool that holds few of the requests, so that they are preempted too.
CROWDED_MIB = 12
CROWDED = {"max_model_len": "640"}
# (The pool is small for another reason too: memory of a large one is used little by little.)
# On a CPU, vLLM's worker keeps a compiled kernel for each number of tokens that it sees, 1,024 of
# them: half a GiB within minutes, which would hide a leak.
FEW_KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}
THROUGHOUT = 0.9  # of the looks at all processes, that saw one which was not started anew
OVERLOADED_MIB = 32
OVERLOADED = {"max_queue_size": "64", "queue_timeout": "20"}
MOST_REQUESTS = 500_000  # a bound; several times what two cores answer in the time that ends a run
MOST_OFFERED = 1000.0  # requests a second: what one core of clients can send
OFFERED = 0.8  # of the requests planned, at least: clients have one core
REFUSED_S, LATEST_REFUSAL_S = 0.1, 2.0  # the median, and the most, of what a refusal may take
LOOK_S = 0.5
MOST_SAID = 2000  # bytes
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
    minutes: float
    """Of traffic, or of loads."""
    kills: Sequence[str] = ()
    """What was killed."""
    late: Sequence[str] = ()
    """What took longer than it may on a machine with nothing beside, a sentence each."""


class Served(NamedTuple):
    """A server with one model, as `tandem serve` has it, and /dev/shm from before it on."""

    server: TritonServer
    front: FrontProcess
    shared: SharedMemory
    said: IO[bytes]
    """By the front, which has nothing to say."""

    def footprint(self) -> Footprint:
        """What it occupies now."""
        return footprint(self.server, self.shared)

    def left(self) -> list[str]:
        """Behind its end: a sentence if there is shared memory of it, and what the front said."""
        names = sorted(path.name for path in self.shared.left(self.server.identity))
        left = [f"The server left in /dev/shm: {', '.join(names)}."] if names else []
        self.said.seek(0)
        said = self.said.read(MOST_SAID).decode(errors="replace")
        return [*left, f"The front said: {said}"] if said else left


@contextmanager
def served(model: str, settings: Mapping[str, str], log: Path | None) -> Iterator[Served]:
    """A server with one model, and its front."""
    shared = SharedMemory()
    said = tempfile.TemporaryFile()  # noqa: SIM115  it is read behind the end
    with (
        overridden(REPOSITORY, (model,), settings) as repository,
        TritonServer(
            ServerOptions(repository, (model,), log_path=log, environment=FEW_KERNELS)
        ) as server,
        front_before(server.endpoints, log=said) as front,
    ):
        yield Served(server, front, shared, said)


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

    async def run(urls: Endpoints, ends: Ends) -> None:
        asks = _mixed(requests, 60 * minutes, seed)
        await closed_loop(urls, model, lambda: next(asks, None), concurrency, ends, tick)

    with served(model, CROWDED | pool(model, CROWDED_MIB), log) as one:
        result = _run(one, run, one.front.endpoints)
    return result._replace(troubles=result.troubles + one.left())


def pool(model: str, mebibytes: int) -> dict[str, str]:
    """Of KV in bfloat16, or for as many tokens: vLLM's are floats where the processor has no
    arithmetic for it."""
    wide = "vllm" in model and not computes_in("bfloat16")
    return {"kv_cache_memory": f"{mebibytes * (1 + wide)}MiB"}


def _mixed(most: int, seconds: float, seed: int) -> Iterator[Ask]:
    """Until so many were sent or, from the first one on, the time is over."""
    end = time.monotonic() + seconds
    for number in range(most):
        if time.monotonic() >= end:
            return
        yield any_ask(random.Random(f"{seed} {number}"))


def faults(
    model: str,
    minutes: float,
    every: float,
    concurrency: int,
    seed: int = 0,
    tick: Tick = lambda: None,
    log: Path | None = None,
) -> Result:
    """Mixed traffic in which, so many seconds after the engine is ready, it or a part of it is
    killed (SIGKILL)."""
    kills: list[str] = []

    async def run(urls: Endpoints, ends: Ends) -> None:
        end = time.monotonic() + 60 * minutes
        asks = _mixed(MOST_REQUESTS, 60 * minutes, seed)
        killing = _kill_parts(one.server, end, every, random.Random(seed), kills)
        traffic = closed_loop(urls, model, lambda: next(asks, None), concurrency, ends, tick)
        await asyncio.gather(killing, traffic)

    with served(model, CROWDED | pool(model, CROWDED_MIB), log) as one:
        result = _run(one, run, one.front.endpoints, kills)
    found = result.troubles + one.left()
    if not kills:
        found.append("Nothing was killed: allow more time.")
    return result._replace(troubles=found, kills=kills)


async def _kill_parts(
    server: TritonServer, end: float, every: float, chance: random.Random, kills: list[str]
) -> None:
    """Until the end is so near that it would not be ready again."""
    begin = read(server.endpoints.metrics)
    while time.monotonic() < end:
        now = await asyncio.to_thread(read, server.endpoints.metrics)
        if not now.up or now.restarts - begin.restarts < len(kills):
            await asyncio.sleep(LOOK_S)
            continue
        await asyncio.sleep(every)
        if time.monotonic() < end - every:
            victim = chance.choice(parts_of_engine(server))
            kills.append(role(victim))
            victim.kill()


def overload(
    model: str,
    factor: float,
    seconds: float,
    tick: Tick = lambda: None,
    log: Path | None = None,
) -> Result:
    """Many times the requests that the server can answer, which is measured before. Clients live on
    other machines, so here they have a core that the server does not use."""

    def ask() -> Ask:
        return Ask(True, "def main(argv):\n", {"max_tokens": 32, "ignore_eos": True}, "read", 0, 0)

    health: list[Asked] = []
    lost: list[str] = []
    late: list[str] = []

    async def run(urls: Endpoints, ends: Ends) -> None:
        begun = time.monotonic()
        until = begun + max(seconds / 3, 5)
        fitting = Ends()
        await closed_loop(
            urls, model, lambda: ask() if time.monotonic() < until else None, 16, fitting, tick
        )
        rate = fitting.total / (time.monotonic() - begun)
        with health_asked(urls.http, health, lost):
            planned = min(factor * rate, MOST_OFFERED)
            await open_loop(urls, model, ask, planned, seconds, ends, tick)
        late.extend(_not_in_time(ends, planned * seconds))
        ends.counts += fitting.counts
        ends.odd += fitting.odd

    cores, of_clients = cores_apart()
    settings = OVERLOADED | pool(model, OVERLOADED_MIB)
    with on_cores(cores), served(model, settings, log) as one, on_cores(of_clients):
        result = _run(one, run, one.front.endpoints)
    found = result.troubles + lost[:10] + _not_overloaded(result.clients, health) + one.left()
    return result._replace(health=health, troubles=found, late=late + too_slow(health))


def _not_overloaded(clients: Mapping[str, int], health: Sequence[Asked]) -> list[str]:
    """A sentence for each sign that nothing was tried."""
    found = [] if clients.get("queue_full") else ["No request was refused."]
    return found if health else [*found, "The server's health was never told."]


def _not_in_time(ends: Ends, planned: float) -> list[str]:
    """A sentence if clients sent far fewer requests than planned, or had to wait for refusals."""
    found, waits = list[str](), sorted(ends.refused_s)
    if ends.total < OFFERED * planned:
        found.append(f"Clients sent {ends.total} requests of {planned:.0f}.")
    usual, most = (statistics.median(waits), waits[-1]) if waits else (0.0, 0.0)
    if usual > REFUSED_S or most > LATEST_REFUSAL_S:
        found.append(f"A refusal took {usual:.2f} s (the median), at most {most:.2f} s.")
    return found


def _run(
    one: Served,
    run: Callable[[Endpoints, Ends], object],
    urls: Endpoints,
    kills: Sequence[str] = (),
) -> Result:
    """Traffic between two accounts, under watch. urls: where clients come. kills: filled
    meanwhile."""
    ends = Ends()
    with GrpcClient(urls.grpc, one.server.options.models[0]) as client:
        client.generate("a", max_tokens=1)
    begin, before = settled(urls.metrics), one.footprint()
    with Watch([one.server.pid, one.front.pid]) as watch:
        begun = time.monotonic()
        asyncio.run(run(urls, ends))  # type: ignore[arg-type]
        minutes = (time.monotonic() - begun) / 60
        account = settled(urls.metrics).since(begin)
    looks = max(map(len, watch.samples.values()))
    least = max(2, THROUGHOUT * looks) if kills else 2
    lasting = {name: seen for name, seen in watch.samples.items() if len(seen) >= least}
    trends = {name: trend(seen, ONCE_MIB) for name, seen in lasting.items()}
    after = one.footprint()
    memory = grown({name: seen for name, seen in trends.items() if not seen.is_flat()})
    found = troubles(ends, account, len(kills)) + memory + _more(before, after)
    return Result(ends.counts, account, trends, watch.samples, before, after, [], found, minutes)


def grown(trends: Mapping[str, Trend]) -> list[str]:
    """A sentence for each process, whose memory is not flat."""
    return [
        f"The memory of {name} grew by {one.growth_mib:.1f} MiB in the second half."
        for name, one in trends.items()
    ]


def _more(before: Footprint, after: Footprint) -> list[str]:
    """A sentence if other processes, or other entries in shared memory, are there than before."""
    if before[:2] == after[:2]:
        return []
    return [f"Before the traffic there was {before}, and now is {after}."]
