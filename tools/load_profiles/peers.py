"""genai-perf and aiperf with their own files of a profile, the server's addresses filled in."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tandem.serving.model_config import read_model
from tools.load_profiles.perf_analyzer import PROGRAM
from tools.load_profiles.profile import FOLDER, ROOT, ProfileError, load_profile
from tools.load_profiles.target import Target, drafting

ENVIRONMENT = ROOT / ".venv-profile"


class _Place(NamedTuple):
    target: Target
    lengths: tuple[int, ...]
    """Of drafts, to compare."""
    tokenizer: Path
    folder: Path


def _genai_perf(config: dict[str, Any], place: _Place) -> Iterator[tuple[str, dict[str, Any]]]:
    """It sweeps one parameter only, so each length of drafts is a run of its own."""
    for length in place.lengths:
        name = f"num_draft_tokens_{length}"
        yield (
            name,
            config
            | {
                "model_names": place.target.model,
                "endpoint": config["endpoint"] | {"url": place.target.endpoints.grpc},
                "perf_analyzer": config["perf_analyzer"] | {"path": str(PROGRAM)},
                "input": config["input"]
                | {"extra": config["input"]["extra"] | {"num_draft_tokens": length}},
                "output": {
                    "artifact_directory": str(place.folder / name),
                    "checkpoint_directory": str(place.folder / name),
                },
                "tokenizer": {"name": str(place.tokenizer)},
            },
        )


def _aiperf(config: dict[str, Any], place: _Place) -> Iterator[tuple[str, dict[str, Any]]]:
    model, endpoints = place.target
    url = f"http://{endpoints.http}/v2/models/{model}/generate_stream"
    swept = config["sweep"]["parameters"] | {"endpoint.extra.num_draft_tokens": list(place.lengths)}
    endpoint = {"url": url, "extra": {"num_draft_tokens": place.lengths[-1]}}
    benchmark = config["benchmark"] | {
        "model": model,
        "tokenizer": {"name": str(place.tokenizer)},
        "endpoint": config["benchmark"]["endpoint"] | endpoint,
        "artifacts": {"dir": str(place.folder / "sweep")},
    }
    sweep = config["sweep"] | {"parameters": swept}
    yield "sweep", config | {"sweep": sweep, "benchmark": benchmark}


class _Tool(NamedTuple):
    arguments: tuple[str, ...]
    """Before the path of the configuration."""
    runs: Callable[[dict[str, Any], _Place], Iterator[tuple[str, dict[str, Any]]]]
    """Names and configurations."""


TOOLS = {
    "genai-perf": _Tool(("config", "-f"), _genai_perf),
    "aiperf": _Tool(("profile", "--ui", "simple", "--config"), _aiperf),
}


def run(name: str, profile: str, target: Target, out: Path) -> Path:
    """Runs a tool with its file of the profile; the folder of its own reports."""
    if name not in TOOLS:
        raise ProfileError(
            f"There is no tool {name!r}: choose perf_analyzer, {' or '.join(TOOLS)}."
        )
    path = FOLDER / name / f"{profile}.yaml"
    if not path.exists():
        raise ProfileError(f"{path} is missing: choose a profile that {name} has a file for.")
    program = ENVIRONMENT / "bin" / name
    if not program.exists():
        raise ProfileError(f"{program} is missing: run tools/setup/load_tools.sh.")
    lengths = load_profile(profile).lengths(drafting(target).most)
    folder = out / profile / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    place = _Place(target, lengths, _tokenizer(target.model), folder)
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    for title, filled in TOOLS[name].runs(config, place):
        _run(program, filled, folder / f"{title}.yaml")
    return folder


def _run(program: Path, config: dict[str, Any], path: Path) -> None:
    """In the repository's folder, where the inputs' paths start; what it says is shown."""
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    command = [str(program), *TOOLS[program.name].arguments, str(path)]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code != 0:
        raise ProfileError(f"{program.name} ended with exit code {code}: see what it said above.")


def _tokenizer(model: str) -> Path:
    """Both tools count tokens themselves: the folder of the target's own tokenizer."""
    folder = read_model(ROOT / "model_repository" / model).path("model")
    if folder is None:
        raise ProfileError(f"The model {model} names no 'model' folder, whose tokenizer is needed.")
    return folder
