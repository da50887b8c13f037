"""Measures every load of a profile, with and without speculation, on one server."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tandem.metrics import PREEMPTIONS
from tandem.triton_http import OK, ask
from tools.load_profiles import perf_analyzer, work
from tools.load_profiles.perf_analyzer import Answer
from tools.load_profiles.points import Point, failed, measured
from tools.load_profiles.profile import Load, Profile, ProfileError
from tools.load_profiles.target import Drafting, Target

WARM_UP = Load("concurrency", 2)


class _Run(NamedTuple):
    answers: list[Answer] | str
    """Or why there are none."""
    preemptions: int


class Sweep:
    """One profile on one server; what perf_analyzer reads and writes stays in `folder`."""

    def __init__(self, profile: Profile, target: Target, how: Drafting, folder: Path) -> None:
        self.profile = profile
        self.target = target
        self.how = how
        self.folder = folder
        self.prompts = profile.prompts()
        self.lengths = profile.lengths(how.most)

    def run(self, console: Console) -> list[Point]:
        """All points, in the order of the profile. Raises `ProfileError` when the server refuses
        what the profile sends."""
        self._preemptions()  # a wrong port is told before anything is measured
        for draft_tokens in self.lengths:  # channels, caches and costs come to rest
            answers = self._measure(WARM_UP, draft_tokens, 4, f"warm-up-{draft_tokens}")
            if isinstance(answers, str):
                raise ProfileError(f"The warm-up failed: {answers}")
        points: list[Point] = []
        with _progress(console) as progress:
            each = len(self.lengths) * self.profile.repeats
            task = progress.add_task("", total=each * len(self.profile.loads))
            for load in self.profile.loads:
                progress.update(task, description=str(load))
                for point in self._points(load, lambda: progress.advance(task)):
                    progress.console.print(self._line(point), highlight=False, markup=False)
                    points.append(point)
        return points

    def _points(self, load: Load, tick: Callable[[], None]) -> Iterator[Point]:
        """Plain and speculative take turns, and nobody always follows the same one."""
        runs: dict[int, list[_Run]] = {length: [] for length in self.lengths}
        for repeat in range(self.profile.repeats):
            for draft_tokens in self.lengths[:: -1 if repeat % 2 else 1]:
                before = self._preemptions()
                name = f"{load.kind}-{load.value:g}-draft-{draft_tokens}-{repeat}"
                answers = self._measure(load, draft_tokens, self.profile.sent(load), name)
                runs[draft_tokens].append(_Run(answers, self._preemptions() - before))
                tick()
        for draft_tokens, of in runs.items():
            yield self._point(load, draft_tokens, of)

    def _point(self, load: Load, draft_tokens: int, runs: Sequence[_Run]) -> Point:
        for run in runs:
            if isinstance(run.answers, str):
                return failed(load, draft_tokens, run.answers)
        return measured(
            load,
            draft_tokens,
            [run.answers for run in runs if isinstance(run.answers, list)],
            self.profile.ramp(load),
            self.profile.percentiles,
            sum(run.preemptions for run in runs),
        )

    def _measure(self, load: Load, draft_tokens: int, count: int, name: str) -> list[Answer] | str:
        """The answers, or why there are none."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        sent = work.requests(self.profile, self.prompts, draft_tokens, count, uuid4().hex[:8])
        (folder / "requests.json").write_text(json.dumps(sent), encoding="utf-8")
        if load.kind == "request_rate":
            gaps = work.intervals(self.profile, load)
            (folder / "intervals").write_text("\n".join(map(str, gaps)), encoding="utf-8")
        model, endpoints = self.target
        arguments = perf_analyzer.command(model, endpoints.grpc, load, count, folder)
        (folder / "command").write_text(shlex.join(arguments) + "\n", encoding="utf-8")
        why = perf_analyzer.run(arguments)
        return why if why else perf_analyzer.read_export(folder / "export.json")

    def _line(self, point: Point) -> str:
        """What is shown of it at once."""
        begin = f"{point.load!s:>16}, {self.how.title(point.draft_tokens):>16}"
        if point.failure:
            return f"{begin}: {point.failure}"
        first = min(point.ttft)
        time = f"TTFT p{first} {1e3 * point.ttft[first]:.0f} ms"
        return f"{begin}: {point.speed:5.0f} tokens/s, {time}"

    def _preemptions(self) -> int:
        """Up to now, by the server's count."""
        answer = ask(self.target.endpoints.metrics, "/metrics", timeout=10)
        if answer.status != OK:
            raise ProfileError(
                f"http://{self.target.endpoints.metrics}/metrics does not answer: correct "
                "METRICS_PORT, or see whether the server still runs."
            )
        families = text_string_to_metric_families(answer.body.decode())
        samples = [sample for family in families for sample in family.samples]
        return int(
            sum(
                sample.value
                for sample in samples
                if sample.name == PREEMPTIONS and sample.labels["model"] == self.target.model
            )
        )


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )
