"""The start of servers, and the end of every process that one has started, however deep.

A server's processes carry an identity in their environment. It survives what a parent-child tree
does not: a killed parent, a new session, a server that is already gone.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import BinaryIO, Final

import psutil

from tandem import guardian_process
from tandem.killing import end_all, marked
from tandem.serving.errors import ServingError

IDENTITY: Final = "TANDEM_SERVER_ID"
GUARDIANS_S: Final = 15.0
"""More than the times together that a guardian gives to others."""


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: BinaryIO | None = None,
    errors: BinaryIO | int | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a program that the kernel ends by SIGTERM when the thread that called this ends, even
    by SIGKILL. A Ctrl-C in the terminal is for the program that owns it.

    setpriv says so to the kernel, and becomes the program. A function between fork and exec could
    not: gRPC's own fork handlers may end the child before (2 of 7,836 starts beside calls).
    """
    if (setpriv := shutil.which("setpriv")) is None:
        raise ServingError("There is no setpriv on PATH: install util-linux.")
    return subprocess.Popen(
        [setpriv, "--pdeathsig=SIGTERM", "--", *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
    )


def members(identity: str) -> list[psutil.Process]:
    """The living processes of the server `identity`."""
    return marked(IDENTITY, identity)


def end_members(identity: str, grace: float) -> None:
    """Waits up to `grace` seconds for them to end, then kills them; but for guardians, which then
    clear away what the others have left, and end."""
    end_all(lambda: [one for one in members(identity) if not _guards(one)], grace)
    end_all(lambda: members(identity), GUARDIANS_S)


def _guards(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return guardian_process.__file__ in process.cmdline()
    return False
