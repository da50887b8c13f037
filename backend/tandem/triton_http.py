"""Questions to a Triton server's HTTP ports, by the standard library alone.

Not through urllib: it would ask a proxy for the way to this machine itself.
"""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple

OK, NO_ANSWER = 200, 0
INDEX = "/v2/repository/index"


class Answer(NamedTuple):
    """To an HTTP request."""

    status: int
    body: bytes = b""

    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)


def ask(address: str, path: str, method: str = "GET", timeout: float = 5.0) -> Answer:
    """address: host:port. Nothing that answers HTTP there is NO_ANSWER, never an error."""
    connection = HTTPConnection(address, timeout=timeout)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return Answer(answer.status, answer.read())
    except (OSError, HTTPException):
        return Answer(NO_ANSWER)
    finally:
        connection.close()
