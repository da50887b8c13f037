"""A rank's process, from rank 1 up: `python -m tandem.runners.rank_worker COMMANDS_FD PULSE_FD`.

It does what rank 0 says, and ends with it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

import torch

from tandem.errors import TandemError
from tandem.killing import die_with_parent
from tandem.runners.commands import Allocate, Command, Done, Failed, Forward, Join, Load, Move, Role
from tandem.runners.model_runner import ModelRunner
from tandem.runners.rank import Rank, pin, room_of

PULSE_S = 0.5


def main() -> None:
    """Serves rank 0 until it hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches us too; rank 0 decides
    die_with_parent()
    commands, pulse = Connection(int(sys.argv[1])), int(sys.argv[2])
    threading.Thread(target=_beat, args=(pulse,), daemon=True).start()
    worker = _Worker(commands)
    while True:
        try:
            command: Command = commands.recv()
        except (EOFError, OSError):
            os._exit(0)  # not by way of the process group, whose other end may be gone
        worker.obey(command)


def _beat(pulse: int) -> None:
    """Shows rank 0 that this process runs."""
    while True:
        try:
            os.write(pulse, b".")
        except OSError:
            os._exit(0)
        time.sleep(PULSE_S)


class _Worker:
    """The state between commands."""

    def __init__(self, commands: Connection) -> None:
        self.commands = commands
        self.rank: Rank
        self.runners: dict[Role, ModelRunner] = {}

    def obey(self, command: Command) -> None:
        if isinstance(command, Forward):
            self._forward(command)
        elif isinstance(command, Move):
            self.runners[command.role].move(command.source, command.target)
        else:
            self.commands.send(self._prepare(command))

    def _prepare(self, command: Join | Load | Allocate) -> Done | Failed:
        try:
            if isinstance(command, Join):
                pin(command.placement, command.rank)
                self.rank = Rank(command.placement, command.rank, command.folder, lambda: False)
            elif isinstance(command, Load):
                self.runners[command.role] = self.rank.load(*command)
            else:
                runner = self.runners[command.role]
                runner.allocate(command.num_blocks, command.block_size)
            return Done(room_of(self.rank.device))
        except (TandemError, RuntimeError, MemoryError) as error:
            return Failed(str(error))

    @torch.inference_mode()
    def _forward(self, command: Forward) -> None:
        runner = self.runners[command.role]
        logits = runner.forward(command.tokens, command.queries, command.rows).logits
        ranks = self.rank.placement.ranks(command.role)
        if ranks[0] == self.rank.rank and logits.shape[0]:  # a draft with ranks of its own
            self.rank.link(command.role).pass_on(logits)


if __name__ == "__main__":
    main()
