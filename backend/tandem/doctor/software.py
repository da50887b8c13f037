"""Python, the packages, and Triton with its Python backend."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from tandem.doctor.finding import Finding, failure, ok, warning
from tandem.serving import Installation, ServingError, find_installation
from tandem.serving.installation import server_environment

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")


def examine_software(triton: Path | None) -> Iterator[Finding]:
    yield _python()
    yield from _packages()
    try:
        installation = find_installation(triton)
    except ServingError as error:
        yield failure("triton", "not found", str(error))
        return
    yield _server(installation)
    yield _stub(installation)


def _python() -> Finding:
    supported = metadata.metadata("tandem")["Requires-Python"]
    if not Requirement(f"python{supported}").specifier.contains(_PYTHON):
        return failure("python", f"{_PYTHON}, but {supported} is needed", "make setup")
    place = "" if sys.prefix != sys.base_prefix else ", outside of a virtual environment"
    return ok("python", f"{sys.version.split()[0]} in {sys.prefix}{place}")


def _packages() -> Iterator[Finding]:
    """Everything that the package itself and its extra `client` ask for."""
    present = []
    for text in metadata.requires("tandem") or []:
        requirement = Requirement(text)
        extra = requirement.marker and not requirement.marker.evaluate({"extra": ""})
        if extra and not (requirement.marker and requirement.marker.evaluate({"extra": "client"})):
            continue
        remedy = f"pip install '{requirement.name}{requirement.specifier}'"
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            missing = warning if extra else failure
            yield missing("packages", f"{requirement.name} is not installed", remedy)
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wanted = f"{requirement.name} is {version}, but {requirement.specifier} is needed"
            yield failure("packages", wanted, remedy)
        present.append(f"{requirement.name} {version}")
    yield ok("packages", ", ".join(present))


def _server(installation: Installation) -> Finding:
    """The binary runs, that is: all of its libraries are there."""
    environment = server_environment(installation, os.environ)
    try:
        run = subprocess.run(
            [installation.binary, "--help"], env=environment, capture_output=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return failure("triton", f"{installation.binary} does not run ({error})", "make setup")
    if b"--model-repository" not in run.stdout + run.stderr:
        reason = run.stderr.decode(errors="replace").strip().splitlines()[-1:]
        text = f"{installation.binary} does not run ({' '.join(reason)})"
        return failure("triton", text, "install the libraries it names, or run make setup")
    return ok("triton", str(installation.binary))


def _stub(installation: Installation) -> Finding:
    """The Python backend is complete and made for this Python."""
    folder = installation.stub.parent
    for path in [installation.stub, *[folder / name for name in _BACKEND_FILES]]:
        if not path.is_file():
            return failure("python backend", f"{path} is missing", "make setup")
    linked = re.search(rb"libpython(\d+\.\d+)[\w.]*\.so", installation.stub.read_bytes())
    version = linked[1].decode() if linked else "an unknown Python"
    if version != _PYTHON:
        return failure(
            "python backend",
            f"its stub is made for Python {version}, the packages are installed for {_PYTHON}",
            f"install tandem for Python {version}, or build a stub for {_PYTHON}",
        )
    return ok("python backend", f"stub for Python {version} in {folder}")
