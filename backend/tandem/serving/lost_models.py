"""Models whose process has ended by itself while Triton goes on.

Triton 2.51 calls such a model ready, answers each of its requests with an error, and takes a load
for one that changes nothing.
"""

from __future__ import annotations

from pathlib import Path

import psutil

_PROGRAM = "triton_python_backend_stub"


class Stubs:
    """The Python backend's processes of a server: one for each instance of a model."""

    def __init__(self, server: int) -> None:
        """server: process id of the tritonserver."""
        self._server = psutil.Process(server)
        self._models: dict[int, str] = {}
        """By process id, of those that live or have not been told of."""
        self._names: set[str] = set()
        """Of all models that had a process."""
        self._ended: set[int] = set()
        self._told: set[int] = set()

    def lost(self) -> list[str]:
        """Models of which a process has ended, once for each, when it is seen to be for the second
        time: one that Triton ends, for an unload, is gone by then."""
        running, ended = self._children()
        self._models |= running
        self._names |= set(running.values())
        lost: set[str] = set()
        for pid in ended & self._ended - self._told:
            self._told.add(pid)
            # one that ended before it was looked at was of a model that has no other now
            unknown = self._names - set(running.values())
            lost |= {self._models[pid]} if pid in self._models else unknown
        self._ended = ended
        self._told &= ended
        return sorted(lost)

    def _children(self) -> tuple[dict[int, str], set[int]]:
        """Models by the processes that run, and the processes that have ended."""
        running: dict[int, str] = {}
        ended: set[int] = set()
        try:
            for child in self._server.children():
                if child.status() == psutil.STATUS_ZOMBIE:
                    ended.add(child.pid)
                    continue
                program, *arguments = child.cmdline() or [""]
                if Path(program).name == _PROGRAM:
                    running[child.pid] = (
                        Path(arguments[0]).parents[1].name
                    )  # MODEL/VERSION/model.py
        except psutil.Error:  # the server, or a child of it, has just gone
            pass
        return running, ended
