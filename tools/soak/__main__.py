"""`python -m tools.soak traffic`, `faults`, `overload` or `reloads`: runs, and says what is wrong.

`python -m tools.soak cancels` measures.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Annotated, NamedTuple

import matplotlib
import numpy as np
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from tools.soak.cancels import Times, cancels, cells, summary
from tools.soak.reloads import reloads
from tools.soak.runs import MOST_REQUESTS, Result, Tick, faults, overload, soak

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)

Model = Annotated[str, typer.Option(help="Model of model_repository.")]
Plot = Annotated[Path | None, typer.Option(help="SVG file for a plot of memory.")]
Log = Annotated[Path | None, typer.Option(help="File for Triton's log.")]


@app.command()
def traffic(
    model: Model = "tandem",
    requests: Annotated[int, typer.Option(min=1, help="Most requests.")] = MOST_REQUESTS,
    minutes: Annotated[float, typer.Option(help="Longest time.")] = 30.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 24,
    seed: Annotated[int, typer.Option(help="Of the traffic.")] = 0,
    plot: Plot = None,
    log: Log = None,
) -> None:
    """Requests of all lengths, good and bad, read, stalled and left, over both protocols."""
    _do(
        lambda tick: soak(model, requests, minutes, concurrency, seed, tick, log),
        Bar(60 * minutes),
        plot,
    )


@app.command("overload")
def overload_command(
    model: Model = "tandem",
    factor: Annotated[float, typer.Option(help="Times the sustainable rate.")] = 10.0,
    seconds: Annotated[float, typer.Option(help="Of overload.")] = 60.0,
    plot: Plot = None,
    log: Log = None,
) -> None:
    """Many more requests than can be answered; is the server's health still told?"""
    _do(lambda tick: overload(model, factor, seconds, tick, log), Bar(4 / 3 * seconds), plot)


@app.command("faults")
def faults_command(
    model: Model = "tandem",
    minutes: Annotated[float, typer.Option(help="Of traffic.")] = 5.0,
    every: Annotated[float, typer.Option(help="Seconds from the engine's start to a kill.")] = 15.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 24,
    seed: Annotated[int, typer.Option(help="Of the traffic, and of what is killed.")] = 0,
    plot: Plot = None,
    log: Log = None,
) -> None:
    """The same traffic while the engine, or a part of it, is killed again and again."""
    _do(
        lambda tick: faults(model, minutes, every, concurrency, seed, tick, log),
        Bar(60 * minutes),
        plot,
    )


@app.command("reloads")
def reloads_command(
    model: Model = "tandem",
    times: Annotated[int, typer.Option(min=2, help="Loads and unloads.")] = 50,
    plot: Plot = None,
    log: Log = None,
) -> None:
    """Loads, answers and unloads."""
    _do(lambda tick: reloads(model, times, tick, log), Bar(times=times), plot)


@app.command("cancels")
def cancels_command(
    model: Model = "tandem",
    times: Annotated[int, typer.Option(min=1, help="Clients of each kind.")] = 20,
) -> None:
    """How long after a client has left its request is gone, and its KV cache free."""
    console = Console()
    with _progress(console, Bar(times=times * len(cells()))) as tick:
        found = cancels(model, times, tick)
    table = Table("request", "client", *Times._fields, title="ms: median (most)")
    for (way, state), one in found.items():
        table.add_row(state, way, *map(summary, zip(*one, strict=True)))
    console.print(table)


class Bar(NamedTuple):
    """What a run is over behind."""

    seconds: float = 0.0
    times: int = 0


@contextmanager
def _progress(console: Console, of: Bar) -> Iterator[Tick]:
    """Shows how many are done, and how much of the whole that is."""
    columns = (TextColumn("{task.fields[done]} done"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("", total=of.times or of.seconds, done=0)
        begun, numbers = time.monotonic(), count(1)

        def tick() -> None:
            done = next(numbers)
            passed = min(time.monotonic() - begun, of.seconds)
            progress.update(task, completed=done if of.times else passed, done=done)

        yield tick


def _do(run: Callable[[Tick], Result], of: Bar, plot: Path | None) -> None:
    console = Console()
    with _progress(console, of) as tick:
        result = run(tick)
    _show(result, console)
    if plot:
        _draw(result, plot)
    sys.exit(1 if result.troubles or result.late else 0)


def _show(result: Result, console: Console) -> None:
    ends = Table("requests", "by clients", "by the server")
    for name in sorted({*result.clients, *result.server.outcomes}):
        counts = (result.clients.get(name, 0), result.server.outcomes.get(name, 0))
        ends.add_row(name, *map(str, counts))
    totals = (sum(result.clients.values()), sum(result.server.outcomes.values()))
    ends.add_row("all", *map(str, totals))
    console.print(ends, f"{result.server.preemptions} preemptions, {result.minutes:.1f} minutes")
    if result.kills:
        console.print(f"killed: {', '.join(result.kills)}")
    memory = Table("process", "MiB", "growth in the second half, MiB")
    for name, one in result.trends.items():
        memory.add_row(name, f"{one.mean_mib:.0f}", f"{one.growth_mib:+.1f}")
    console.print(memory, f"before: {result.before}", f"after: {result.after}", sep="\n")
    if result.health:
        console.print(_answered([one.ms for one in result.health], "health answered in ms"))
        net = [one.ms - one.own_ms for one in result.health]
        console.print(_answered(net, "without the asker's own wait for a core"))
    for trouble in result.troubles:
        console.print(f"WRONG: {trouble}", markup=False)
    for late in result.late:
        console.print(f"LATE: {late}", markup=False)
    end = "It does not add up." if result.troubles else "All adds up."
    console.print(f"{end} Not all came in time." if result.late else end)


def _answered(ms: list[float], what: str) -> str:
    points = np.percentile(ms, [50, 99, 100])
    return "{}: p50 {:.1f}, p99 {:.1f}, most {:.1f}".format(what, *points)


def _draw(result: Result, path: Path) -> None:
    """Memory by process over the run."""
    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 3))
    for name, samples in result.samples.items():
        axis.plot(*zip(*samples, strict=True), label=name)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("resident MiB")
    axis.set_xlabel("seconds (loads, of reloads)")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    app()
