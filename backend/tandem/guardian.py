"""Starts the process that ends what Triton leaves behind (`guardian_process`)."""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tandem import guardian_process
from tandem.engine_process import own_python

logger = logging.getLogger("tandem")

_REGION, _TRITON = 2, 5
"""Among a stub's arguments: its shared memory's name, and Triton's process id."""


class Guardian:
    """Of this process, a stub of Triton's, and of its engines. It ends when they have ended."""

    def __init__(self) -> None:
        self.family = Path(tempfile.mkdtemp(prefix="tandem-"))
        """A folder for temporary files, by which what belongs together is known, too."""
        arguments = Path("/proc/self/cmdline").read_bytes().split(b"\0")
        try:
            self.process: subprocess.Popen[bytes] | None = self._start(arguments)
        except OSError as error:  # Linux before 5.3, or what hides processes
            self.process = None
            logger.warning(
                "Nothing will end this model's processes behind a crash of Triton: %s.", error
            )

    def _start(self, arguments: list[bytes]) -> subprocess.Popen[bytes]:
        region = os.fsdecode(arguments[_REGION]) if len(arguments) > _TRITON else ""
        with ExitStack() as stack:
            stub = os.pidfd_open(os.getpid())
            stack.callback(os.close, stub)
            triton = _triton(arguments[_TRITON:], stub)
            stack.callback(os.close, triton)
            said = str(triton), str(stub), region, str(self.family)
            return subprocess.Popen(
                [own_python(), "-P", guardian_process.__file__, *said],
                pass_fds=[triton, stub],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # what a terminal sends is for others
            )


def _triton(said: list[bytes], stub: int) -> int:
    """A descriptor that can be read when Triton has gone. (The process's parent may be another: a
    program around the stub, or whoever adopted it when Triton ended.)"""
    try:
        return os.pidfd_open(int(said[0]))
    except (IndexError, ValueError):
        logger.warning("Triton does not say which process it is: nothing ends this one behind it.")
        return os.dup(stub)
    except ProcessLookupError:
        ended, other = os.pipe()
        os.close(other)
        return ended
