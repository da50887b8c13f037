"""`make profile`: measures a profile on a server that runs, or on one of its own, and reports."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.common import machine
from benchmarks.markdown import machine_line
from tandem.cli import settings
from tandem.errors import TandemError
from tandem.serving import Endpoints, ServerOptions, TritonServer
from tandem.serving.foreground import interruptible
from tandem.serving.overrides import overridden
from tandem.triton_http import OK, ask, model_path
from tools.load_profiles import peers, report
from tools.load_profiles.profile import ROOT, ProfileError, load_profile
from tools.load_profiles.sweep import Sweep
from tools.load_profiles.target import Target, drafting

OUT = ROOT / "build" / "profiles"
LOCAL = ("127.0.0.1", "localhost")


def main(
    profile: Annotated[str, typer.Argument(help="Its name, or a .yaml file.")] = "chat",
    tool: Annotated[str, typer.Option(help=f"perf_analyzer, {' or '.join(peers.TOOLS)}.")] = (
        "perf_analyzer"
    ),
    model: Annotated[str, typer.Option(help="Model to ask.")] = "tandem",
    host: Annotated[str, typer.Option(help="Of a server that runs.")] = "127.0.0.1",
    http_port: int = 8000,
    grpc_port: int = 8001,
    metrics_port: int = 8002,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="For a server of its own; repeatable."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the reports.")] = OUT,
) -> None:
    """Measure a load profile and write a report."""
    console = Console()
    endpoints = Endpoints(*(f"{host}:{port}" for port in (http_port, grpc_port, metrics_port)))
    try:
        with interruptible(), serving(Target(model, endpoints), settings(set_), console) as target:
            if tool == "perf_analyzer":
                path = measure(profile, target, out / Path(profile).stem, console)
            else:
                path = peers.run(tool, profile, target, out)
        console.print(f"written: {path}", soft_wrap=True)
    except TandemError as error:
        Console(stderr=True).print(f"profile: {error}", markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def measure(name: str, target: Target, folder: Path, console: Console) -> Path:
    """The sweep and its report, in place of what an earlier one left in `folder`."""
    profile, how = load_profile(name), drafting(target)
    sweep = Sweep(profile, target, how, folder / "runs")
    found = machine_line(machine())  # before the load, for it measures the memory's speed
    if target.endpoints.http.rpartition(":")[0] not in LOCAL:
        found = f"The server is at {target.endpoints.http}; the clients' machine: {found}"
    shutil.rmtree(folder / "runs", ignore_errors=True)
    for earlier in (folder / "report.md", folder / "points.json", *folder.glob("*.svg")):
        earlier.unlink(missing_ok=True)
    points = sweep.run(console)
    return report.write(Path(name).stem, profile, how, points, found, folder)


@contextmanager
def serving(wanted: Target, parameters: dict[str, str], console: Console) -> Iterator[Target]:
    """The server that runs; where none does on this machine, or it is to have other parameters,
    one on free ports."""
    host = wanted.endpoints.http.rpartition(":")[0]
    if not parameters and _ready(wanted):
        console.print(f"Measuring the server at {wanted.endpoints.grpc}", highlight=False)
        yield wanted
    elif host in LOCAL:
        repository = ROOT / "model_repository"
        # the profile's prompts come again: no suffix of earlier answers is to be found
        forgetful = {"suffix_decoding_max_cached_requests": "0"}
        with overridden(repository, [wanted.model], forgetful | parameters) as served:
            server = TritonServer(ServerOptions(served, (wanted.model,)))
            try:
                server.start()
                with console.status(f"Triton is loading {wanted.model}"):
                    server.wait_ready()
                console.print(f"Measuring a server of its own, {wanted.model}", highlight=False)
                yield Target(wanted.model, server.endpoints)
            finally:
                server.stop()
    else:
        raise ProfileError(
            f"No model {wanted.model!r} is ready at {wanted.endpoints.http}: start it, or correct "
            "MODEL, HOST and the ports. (Parameters can be set for a local server alone.)"
        )


def _ready(target: Target) -> bool:
    return ask(target.endpoints.http, model_path(target.model, "ready")).status == OK


if __name__ == "__main__":
    typer.run(main)
