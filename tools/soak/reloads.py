"""Loads, reloads and unloads, again and again: what they leave behind."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from tritonclient.grpc import InferenceServerClient

from tandem_client import GrpcClient
from tools.soak.account import read, shown
from tools.soak.runs import LOOK_S, Result, Served, Tick, grown, served
from tools.soak.watch import MIB, OF_LOADS_MIB, Footprint, Sample, engines_of, trend

OF_A_COPY = {"log_level": "info"}  # a model's parameters as they are; its files may be touched
LOAD_S, UNLOAD_S = 300.0, 60.0
TRITON_ALONE = Footprint(processes=1, regions=0, region_mib=0.0)


def reloads(model: str, times: int, tick: Tick = lambda: None, log: Path | None = None) -> Result:
    """Loads, answers and unloads, again and again."""
    begun, samples, prints = time.monotonic(), list[Sample](), list[Footprint]()
    held, found = list[dict[str, int]](), list[str]()
    with served(model, OF_A_COPY, log) as one:
        begin = read(one.server.endpoints.metrics)
        triton = psutil.Process(one.server.pid)
        for number in range(times):
            found += _load_and_unload(one, model)
            prints.append(_rest(one))
            if "\ntandem_" in shown(one.server.endpoints.metrics):
                found.append("Metrics of a model that was unloaded are still shown.")
            samples.append(Sample(number, triton.memory_info().rss / MIB))
            held.append({"open files": triton.num_fds(), "threads": triton.num_threads()})
            tick()
        account = read(one.server.endpoints.metrics).since(begin)
    whole = trend(samples[1:] if times > 2 else samples)  # the first is the first of everything
    trends = {"tritonserver": whole}
    found += [f"After an unload there was {left}." for left in {*prints} - {TRITON_ALONE}]
    found += grown({} if whole.is_flat(OF_LOADS_MIB, share=0) else trends)
    found += kept(held) + one.left()
    ends, minutes = {"answered": 2 * times}, (time.monotonic() - begun) / 60
    memory = {"tritonserver": samples}
    return Result(ends, account, trends, memory, prints[0], prints[-1], [], found, minutes)


def kept(held: Sequence[Mapping[str, int]]) -> list[str]:
    """A sentence for each thing of which loads leave some behind. held: how many there are behind
    each unload; fewer than one in two are none of theirs."""
    more = {what: held[-1][what] - held[0][what] for what in held[0]}
    return [
        f"Triton has {count} more {what} than behind the first of {len(held)} unloads."
        for what, count in more.items()
        if count > len(held) / 2
    ]


def _load_and_unload(one: Served, model: str) -> list[str]:
    """A load, a reload and an unload; a sentence if the reload loaded nothing. (Triton loads again
    only what has changed: a file of the model's folder, or what its configuration says.)"""
    urls, door, engines = one.server.endpoints, one.front.endpoints.grpc, list[set[int]]()
    with InferenceServerClient(urls.grpc) as control, GrpcClient(door, model) as client:
        for _ in range(2):
            (one.server.options.model_repository / model / "again").touch()
            control.load_model(model, client_timeout=LOAD_S)
            client.generate("def main():", max_tokens=8)
            engines.append(engines_of(one.server))
        control.unload_model(model)
    return [] if engines[1] - engines[0] else ["A reload loaded nothing."]


def _rest(one: Served) -> Footprint:
    """What is left behind an unload, which takes a moment."""
    end = time.monotonic() + UNLOAD_S
    while (left := one.footprint()) != TRITON_ALONE and time.monotonic() < end:
        time.sleep(LOOK_S)
    return left
