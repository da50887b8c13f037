"""Every process that a server started, however deep, and their end.

A server's processes carry an identity in their environment. It survives what a parent-child tree
does not: a killed parent, a new session, a server that is already gone.
"""

from contextlib import suppress
from typing import Final

import psutil

from tandem import guardian_process
from tandem.killing import end_all, marked

IDENTITY: Final = "TANDEM_SERVER_ID"
GUARDIANS_S: Final = 15.0
"""More than the times together that a guardian gives to others."""


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
