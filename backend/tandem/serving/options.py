"""What a tritonserver serves, and the command that starts it so."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tandem.serving.errors import ServingError
from tandem.serving.installation import Installation
from tandem.serving.ports import FREE, Ports

_PLACES: Final = {
    f"--{protocol}-{what}"
    for protocol in ("http", "grpc", "metrics")
    for what in ("address", "port")
}


@dataclass(frozen=True)
class ServerOptions:
    """What to serve and where."""

    model_repository: Path
    models: tuple[str, ...] = ()
    """Loaded at start. Other models of the repository stay unloaded until a client loads them."""
    host: str = "127.0.0.1"
    ports: Ports = FREE
    log_path: Path | None = None
    """None: a temporary file, removed when the server was stopped without a failure."""
    environment: Mapping[str, str] = field(default_factory=dict)
    triton: Path | None = None
    """The tritonserver binary; None: see `find_installation`."""
    exit_timeout_s: int = 10
    shm_bytes: int = 4 << 20
    """Shared memory per model instance between server and stub, at start and per growth."""
    arguments: tuple[str, ...] = ()
    """Further arguments of tritonserver, as they are."""


def check_models(repository: Path, models: Sequence[str]) -> None:
    """Raises what Triton reports late and in many words: there is no such folder."""
    if not repository.is_dir():
        raise ServingError(
            f"The model repository {repository} is no folder: name it with --model-repository."
        )
    for name in models:
        if not (repository / name / "config.pbtxt").is_file():
            present = sorted(path.parent.name for path in repository.glob("*/config.pbtxt"))
            raise ServingError(
                f"{repository} holds no model '{name}': "
                f"choose one of {', '.join(present) or 'none (it is empty)'}."
            )


def check_arguments(arguments: Sequence[str]) -> None:
    """Raises where one of them would keep Triton from being looked after."""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        name, has_value, value = argument.partition("=")
        if name in _PLACES:
            raise ServingError(
                f"{name} is no further argument of tritonserver here: say where it listens by "
                "--host, --http-port, --grpc-port and --metrics-port before the --."
            )
        if name == "--load-model":
            raise ServingError("Say which models are loaded by --model before the --.")
        if name == "--allow-http":
            raise ServingError(
                "Triton is looked after over HTTP: leave --allow-http out of its arguments."
            )
        if name == "--http-restricted-api":
            apis = (value if has_value else following).partition(":")[0].split(",")
            if "health" in apis:
                raise ServingError(
                    "Triton is asked whether it is ready, over HTTP: leave health out of "
                    "--http-restricted-api."
                )


def command(
    options: ServerOptions, installation: Installation, ports: Ports, identity: str
) -> list[str]:
    """What starts tritonserver."""
    shm = options.shm_bytes
    return [
        str(installation.binary),
        f"--model-repository={options.model_repository.resolve()}",
        f"--backend-directory={installation.backends}",
        # Only the models that were asked for: another one may need what this machine lacks.
        "--model-control-mode=explicit",
        *[f"--load-model={name}" for name in options.models],
        f"--http-address={options.host}",
        f"--grpc-address={options.host}",
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
        "--allow-metrics=true",
        f"--exit-timeout-secs={options.exit_timeout_s}",
        # Two servers on one machine must not share regions; the name also finds leftovers.
        f"--backend-config=python,shm-region-prefix-name={identity}",
        f"--backend-config=python,shm-default-byte-size={shm}",
        f"--backend-config=python,shm-growth-byte-size={shm}",
        *options.arguments,
    ]
