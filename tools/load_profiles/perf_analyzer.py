"""Runs perf_analyzer and reads the answers that it exports."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from tools.load_profiles.profile import ROOT, Load, ProfileError

PROGRAM = ROOT / ".perf_analyzer" / "perf_analyzer"
LIMIT_S = 900
_ERROR = re.compile(r"^(?:Thread \[\d+\] had error|error|Error): (.+)$", re.MULTILINE)


class Answer(NamedTuple):
    """One request's, in seconds on perf_analyzer's clock."""

    sent: float
    arrivals: list[float]
    """Of the responses that bring tokens."""
    tokens: list[int]
    """That each of these brings."""
    drafted: int
    accepted: int


def command(model: str, url: str, load: Load, count: int, folder: Path) -> list[str]:
    """One measurement of a decoupled model: its files are in `folder`."""
    common = ["-m", model, "-u", url, "-i", "grpc", "--async", "--streaming"]
    common += ["--input-data", str(folder / "requests.json"), "--request-count", str(count)]
    if load.kind == "concurrency":
        shape = ["--concurrency-range", f"{load.value:g}"]
    else:  # its own --request-rate-range knows no bursts, and its rates are only near the wanted
        shape = ["--request-intervals", str(folder / "intervals")]
    # One window of so many requests; without the last option it would look for a steady state.
    window = ["--stability-percentage", "999"]
    return [
        str(PROGRAM),
        *common,
        *shape,
        *window,
        "--profile-export-file",
        str(folder / "export.json"),
    ]


def run(arguments: list[str]) -> str | None:
    """None, or why there are no answers: the server's sentence, such as that of a full queue."""
    if not PROGRAM.exists():
        raise ProfileError(f"{PROGRAM} is missing: run tools/setup/perf_analyzer.sh.")
    try:
        ended = subprocess.run(
            arguments, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"perf_analyzer was not done after {LIMIT_S} s: measure fewer requests."
    if ended.returncode == 0:
        whole = Path(arguments[-1]).stat().st_size > 0
        return None if whole else "perf_analyzer left its export empty: measure again."
    said = _ERROR.search(ended.stderr + ended.stdout)
    return said[1] if said else f"perf_analyzer ended with exit code {ended.returncode}."


def read_export(path: Path) -> list[Answer]:
    """In the order in which the requests were sent. Raises `ProfileError` when an answer has
    another length than was asked: then the figures would not be those of the profile."""
    (experiment,) = json.loads(path.read_text(encoding="utf-8"))["experiments"]
    return sorted(_answer(request) for request in experiment["requests"])


def _answer(request: dict[str, Any]) -> Answer:
    # Outputs that a response lacks are exported as arbitrary numbers: only what every response
    # has, or the last one, may be read.
    outputs = request["response_outputs"]
    got = [
        (stamp / 1e9, output["num_output_tokens"])
        for stamp, output in zip(request["response_timestamps"], outputs, strict=True)
        if output["num_output_tokens"]
    ]
    asked = json.loads(request["request_inputs"]["sampling_parameters"])["max_tokens"]
    if sum(tokens for _, tokens in got) != asked:
        raise ProfileError(
            f"A request for {asked} tokens got {sum(tokens for _, tokens in got)}: "
            "shorten the profile's prompts or its output_tokens until both fit max_model_len."
        )
    last = outputs[-1]
    return Answer(
        request["timestamp"] / 1e9,
        [stamp for stamp, _ in got],
        [tokens for _, tokens in got],
        last["total_draft_tokens"],
        last["total_accepted_draft_tokens"],
    )
