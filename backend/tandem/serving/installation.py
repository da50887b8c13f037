"""Where Triton is installed, and the environment in which it finds this Python.

Triton's Python backend runs a model in a stub, a program with an interpreter of its own. The stub
takes the environment that is active when the server starts, so the server is started as if the
environment of the running interpreter had been activated.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tandem.serving.errors import ServingError

_SYSTEM_WIDE = Path("/opt/tritonserver")


class Installation(NamedTuple):
    binary: Path
    backends: Path
    libraries: Path

    @property
    def stub(self) -> Path:
        return self.backends / "python" / "triton_python_backend_stub"


def find_installation(binary: Path | None = None) -> Installation:
    """The installation of `binary`, or else the first of: `.triton/` beside the environment or
    above the working folder, `tritonserver` on PATH, /opt/tritonserver."""
    for candidate in [binary] if binary else _candidates():
        if os.access(candidate, os.X_OK):
            return _installation_of(candidate.resolve())
    if binary:
        raise ServingError(f"{binary} is no executable file: name the tritonserver binary.")
    raise ServingError(
        "No tritonserver found in .triton/, on PATH or in /opt/tritonserver: run make setup, "
        "or name the binary with --triton."
    )


def _candidates() -> Iterator[Path]:
    for folder in (Path(sys.prefix).parent, Path.cwd(), *Path.cwd().parents):
        yield folder / ".triton" / "bin" / "tritonserver"
    if on_path := shutil.which("tritonserver"):
        yield Path(on_path)
    yield _SYSTEM_WIDE / "bin" / "tritonserver"


def _installation_of(binary: Path) -> Installation:
    root = binary.parent.parent
    # A binary that was installed alone, as /usr/bin/tritonserver, has its backends elsewhere.
    backends = root / "backends" if (root / "backends").is_dir() else _SYSTEM_WIDE / "backends"
    return Installation(binary, backends, root / "lib")


def server_environment(installation: Installation, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables under which the server's stub sees the running Python environment."""
    environment = dict(inherited)
    environment["PATH"] = _prepended(Path(sys.executable).parent, inherited.get("PATH"))
    environment["LD_LIBRARY_PATH"] = _prepended(
        installation.libraries, inherited.get("LD_LIBRARY_PATH")
    )
    if sys.prefix != sys.base_prefix:
        environment["VIRTUAL_ENV"] = sys.prefix
    return environment


def _prepended(folder: Path, path: str | None) -> str:
    return f"{folder}{os.pathsep}{path}" if path else str(folder)
