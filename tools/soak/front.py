"""The nginx that stands before Triton for clients that are not trusted."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tandem.serving.ports import Ports, choose_ports
from tandem.triton_http import HEALTH, OK, ask

CONF = Path(__file__).parents[2] / "docker" / "front.conf"
MAIN = """
daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
    {paths}
    include {folder}/front.conf;
}}
"""
PATHS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
LOOK_S = 0.05


class Front(NamedTuple):
    """An nginx that runs."""

    url: str
    """host:port"""
    log: Path
    """A line for each request."""


def has_nginx() -> bool:
    """Whether this machine has one."""
    return shutil.which("nginx") is not None


@contextmanager
def nginx(triton: str) -> Iterator[Front]:
    """One that runs as docker/front.conf says, but for its port, Triton's and its log."""
    port = choose_ports("127.0.0.1", Ports(0, 0, 0)).http
    url = f"127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="tandem-") as name:
        folder = Path(name)
        conf = CONF.read_text().replace("listen 8080", f"listen {url}")
        conf = conf.replace("triton:8000", triton).replace("/dev/stdout", f"{folder}/access.log")
        (folder / "front.conf").write_text(conf)
        paths = " ".join(f"{one}_temp_path {folder}/{one};" for one in PATHS)
        (folder / "nginx.conf").write_text(MAIN.format(folder=folder, paths=paths))
        log = folder / "error.log"
        command: list[str | Path] = ["nginx", "-p", folder, "-e", log]
        command += ["-c", folder / "nginx.conf"]
        with subprocess.Popen(command) as process:
            try:
                while ask(url, HEALTH).status != OK:
                    if process.poll() is not None:
                        raise RuntimeError(f"nginx has ended: {log.read_text()}")
                    time.sleep(LOOK_S)
                yield Front(url, folder / "access.log")
            finally:
                process.terminate()
