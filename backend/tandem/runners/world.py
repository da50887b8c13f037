"""Rank 0's view of the other ranks: it starts them, tells them what to do, notices their loss."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from tandem.errors import ConfigError, EngineDeadError
from tandem.runners.commands import Command, Done, Failed, Join, Room
from tandem.runners.groups import group_file_bytes
from tandem.runners.placement import Placement
from tandem.runners.rank import Rank, group_file, pin

HANG_S = 3.0  # a rank that has been silent for so long is lost


def _meeting_place(on_gpus: bool) -> tempfile.TemporaryDirectory[str]:
    """A folder of files at which ranks meet, in memory where they exchange tensors by these."""
    in_memory = not on_gpus and os.access("/dev/shm", os.W_OK)
    return tempfile.TemporaryDirectory(prefix="tandem-", dir="/dev/shm" if in_memory else None)


class RankProcess:
    """One rank's process and the two channels to it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        commands, theirs = socket.socketpair()
        pulse, beating = os.pipe()
        fds = (theirs.fileno(), beating)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tandem.runners.rank_worker", *map(str, fds)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
            )
        os.close(beating)
        self.commands = Connection(commands.detach())
        self.pulse = pulse
        self.heard = time.monotonic()

    def wait_done(self) -> Done:
        """Waits for the answer to a command. Raises `ConfigError` with what went wrong."""
        try:
            answer: Done | Failed = self.commands.recv()
        except (EOFError, OSError):
            answer = Failed(f"Rank {self.rank} ended at start with code {self.process.wait()}.")
        if isinstance(answer, Failed):
            raise ConfigError(answer.reason)
        return answer

    def kill(self) -> None:
        """Ends the process if it has not ended."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Closes the channels of a process that has ended."""
        self.commands.close()
        os.close(self.pulse)


class World:
    """All ranks of an engine; this process is rank 0."""

    def __init__(self, placement: Placement) -> None:
        """Raises `ConfigError` if a rank does not start."""
        self.placement = placement
        self.on_lost: Callable[[str], None] = lambda reason: None
        self.rooms: dict[int, Room | None] = {}
        """What the other ranks' GPUs have left, as they last said."""
        self._lost = threading.Event()
        self._reason = ""
        self._closing = False
        self._affinity, self._threads = os.sched_getaffinity(0), torch.get_num_threads()
        on_gpus = placement.devices[0].type == "cuda"
        self._folder = _meeting_place(on_gpus)
        self._others = {rank: RankProcess(rank) for rank in range(1, placement.world_size)}
        try:
            self.rank = self._join(Path(self._folder.name))
            if not on_gpus:  # NCCL looks at its file as long as there is a group
                self._folder.cleanup()
        except BaseException:
            self._kill_all()
            self._tidy()
            raise
        self._watcher = threading.Thread(target=self._watch, name="tandem-ranks", daemon=True)
        self._watcher.start()

    def _join(self, folder: Path) -> Rank:
        """Meets the others at files in `folder`."""
        for ranks in self.placement.groups():
            with group_file(folder, ranks).open("wb") as file:
                file.truncate(group_file_bytes(len(ranks)))
        for rank, other in self._others.items():
            other.commands.send(Join(self.placement, rank, folder))
        pin(self.placement, 0)
        own = Rank(self.placement, 0, folder, self._lost.is_set)
        self.wait_done(self._others)
        return own

    def tell(self, ranks: Iterable[int], command: Command) -> None:
        """Sends a command to ranks, rank 0 left out."""
        for rank in ranks:
            if rank:
                self._others[rank].commands.send(command)

    def wait_done(self, ranks: Iterable[int]) -> None:
        """Waits until ranks have carried out a command that is answered."""
        for rank in ranks:
            if rank:
                self.rooms[rank] = self._others[rank].wait_done().room

    def explain(self, error: Exception) -> Exception:
        """What to raise for a failed pass: the loss of a rank, if that is behind it."""
        if self._lost.wait(HANG_S):
            return EngineDeadError(self._reason)
        return error

    def close(self) -> None:
        """Ends all other ranks and leaves the group."""
        self._closing = True
        self._kill_all()
        self._watcher.join()
        self._tidy()

    def _kill_all(self) -> None:
        for other in self._others.values():
            other.kill()

    def _tidy(self) -> None:
        for other in self._others.values():
            other.close()
        Rank.leave()
        self._folder.cleanup()
        os.sched_setaffinity(0, self._affinity)
        torch.set_num_threads(self._threads)

    # -- watching ------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Waits for the first rank that ends or falls silent; then ends the others too, so that
        no rank waits for it in a collective call."""
        reason = self._listen()
        if self._closing:
            return
        self._reason = reason
        self._kill_all()
        self._lost.set()
        self.on_lost(reason)

    def _listen(self) -> str:
        with selectors.DefaultSelector() as selector:
            for other in self._others.values():
                other.heard = time.monotonic()
                selector.register(other.pulse, selectors.EVENT_READ, other)
            while True:
                for key, _ in selector.select(HANG_S / 8):
                    other = key.data
                    other.heard = time.monotonic()
                    if not os.read(other.pulse, 4096):
                        return f"Rank {other.rank} ended with code {other.process.wait()}."
                for other in self._others.values():
                    if time.monotonic() - other.heard > HANG_S:
                        return f"Rank {other.rank} has not shown a sign of life for {HANG_S:.0f} s."
