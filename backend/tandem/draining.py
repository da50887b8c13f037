"""How long requests may go on in a model that is being unloaded.

Triton takes no more requests, waits for the running ones as long as they take, and tells the model
only afterwards. So the model asks over HTTP, as any client might, whether it is being unloaded.
(pb_utils.is_model_ready would tell, but Triton 2.51 crashes when it is called often.)
"""

from __future__ import annotations

import time

import psutil

from tandem.triton_http import INDEX, OK, Answer, ask, model_path

ANSWER_S = 2.0  # longest wait for an answer
LOOK_S = 30.0  # between two looks for a port that was not there


class Load:
    """A version of a model as a server's clients see it."""

    def __init__(self, server: int, model: str, version: str) -> None:
        """server: process id of the tritonserver."""
        self._server = server
        self._name, self._version = model, version
        self._http: str | None = None
        self._looked = -LOOK_S  # for it, when

    def unloading(self) -> bool:
        """Whether Triton is seen to wait for its last requests."""
        http = self._http = self._http or self._find_http()
        if http is None:
            return False
        ready = _ask(http, model_path(self._name, "ready", self._version))
        if ready.status == OK:
            return False
        # It may be unready for another reason. (The index is asked last: it looks at all folders.)
        index = _ask(http, INDEX, "POST")
        mine = {"name": self._name, "version": self._version, "state": "UNLOADING"}
        return index.status == OK and any(mine.items() <= one.items() for one in index.json())

    def _find_http(self) -> str | None:
        """Looks for the port, not too often: a server may have none."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return None
        self._looked = now
        return next(filter(_speaks_http, _listening(self._server)), None)


def _listening(pid: int) -> list[str]:
    try:
        sockets = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:  # gone, or another user's
        return []
    listening = [one.laddr for one in sockets if one.status == psutil.CONN_LISTEN]
    return [f"{one.ip}:{one.port}" for one in listening]


def _speaks_http(address: str) -> bool:
    """Triton's HTTP port tells of the server; those of gRPC and metrics do not."""
    return b'"extensions"' in _ask(address, "/v2").body


def _ask(address: str, path: str, method: str = "GET") -> Answer:
    return ask(address, path, method, ANSWER_S)


class Drain:
    """The time that a model's last requests have.

    A reload is not seen: Triton offers the new load under the same name at once.
    """

    def __init__(self, load: Load, timeout: float) -> None:
        """timeout: seconds from the unload."""
        self._load = load
        self._timeout = timeout
        self._began: float | None = None

    def over(self) -> bool:
        """Whether the time is over; to be asked again and again."""
        if self._began is None and self._load.unloading():
            self._began = time.monotonic()
        return self._began is not None and time.monotonic() - self._began >= self._timeout

    @property
    def reason(self) -> str:
        """What a request that had not enough time is told."""
        return (
            f"The model is being unloaded and drain_timeout, {self._timeout:g} s, is over: send "
            "the request again elsewhere."
        )
