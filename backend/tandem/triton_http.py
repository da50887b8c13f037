"""Questions to a Triton server's HTTP and metrics ports, by the standard library alone.

Not through urllib: it would ask a proxy for the way to this machine itself.
"""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple
from urllib.parse import quote

OK, NO_ANSWER = 200, 0
HEALTH, INDEX = "/v2/health/ready", "/v2/repository/index"


class Answer(NamedTuple):
    """To an HTTP request."""

    status: int
    body: bytes = b""

    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)


def model_path(name: str, what: str, version: str = "") -> str:
    """Of a question about a model."""
    return f"/v2/models/{quote(name)}{f'/versions/{version}' if version else ''}/{what}"


def ask(address: str, path: str, method: str = "GET", timeout: float = 5.0) -> Answer:
    """address: host:port. Where nothing answers HTTP there the answer is NO_ANSWER."""
    connection = HTTPConnection(address, timeout=timeout)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return Answer(answer.status, answer.read())
    except (OSError, HTTPException):
        return Answer(NO_ANSWER)
    finally:
        connection.close()
