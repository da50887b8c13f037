"""Clients over HTTP: Triton's `generate_stream` endpoint and its server-sent events."""

import json
import math
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from typing import Any

import httpx2

from tandem_client import errors
from tandem_client.base import AsyncClient, Client
from tandem_client.types import Chunk
from tandem_client.wire import Fields, json_outputs, to_chunk

_CONNECT_TIMEOUT = 5.0  # seconds
# Every stream occupies a connection, so their number is the caller's to bound.
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=32)
_CUT_OFF = "the stream ended before the answer was complete"
_TOO_LATE = "the request ran past its timeout of {} s"


def _base_url(url: str) -> httpx2.URL:
    try:
        return httpx2.URL(url if "://" in url else f"http://{url}")
    except httpx2.InvalidURL as error:
        raise errors.InvalidArgument(f"'{url}' is no HOST:PORT ({error}): give one") from None


def _sentence(body: str) -> str:
    """The sentence in an error's body: JSON, or an event that holds it."""
    text = body.strip().removeprefix("data:").strip()
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text


def _decode(data: str) -> Chunk:
    message: dict[str, Any] = json.loads(data)
    if "error" in message:
        # The status went out with the first response, so a later error has no code.
        raise errors.from_sentence(str(message["error"]), answering=True)
    return to_chunk(json_outputs(message))


def _wait(timeout: float | None) -> httpx2.Timeout:
    """An answer may take as long as it takes; a connection may not."""
    longest = _CONNECT_TIMEOUT if timeout is None else min(_CONNECT_TIMEOUT, timeout)
    return httpx2.Timeout(timeout, connect=longest)


def _unconnected(error: httpx2.TransportError, timeout: float | None) -> errors.TandemError:
    """Where a connection was waited for as long as the request may take, it is late."""
    if isinstance(error, httpx2.ConnectTimeout) and (timeout or math.inf) <= _CONNECT_TIMEOUT:
        return errors.DeadlineExceeded(_TOO_LATE.format(timeout))
    return errors.unreachable(error)


def _deadline(timeout: float | None) -> Callable[[], None]:
    """A check to make at every event: a read has a timeout, a whole response has none."""
    end = math.inf if timeout is None else time.monotonic() + timeout

    def check() -> None:
        if time.monotonic() > end:
            raise errors.DeadlineExceeded(_TOO_LATE.format(timeout))

    return check


class HttpClient(Client):
    """Blocking client for `url` = HOST:PORT or a URL with its scheme."""

    def __init__(
        self,
        url: str = "localhost:8000",
        model: str = "tandem",
        *,
        details: bool = True,
        headers: Mapping[str, str] | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        super().__init__(model, details)
        self._http = httpx2.Client(
            base_url=_base_url(url), headers=headers, limits=_LIMITS, transport=transport
        )

    def is_ready(self) -> bool:
        """Whether the model can answer."""
        try:
            return self._http.get(f"/v2/models/{self.model}/ready").status_code == 200
        except httpx2.TransportError:
            return False

    def close(self) -> None:
        """Close the connections, which cancels what is still under way on them."""
        self._http.close()

    def _open(self, fields: Fields, timeout: float | None) -> Generator[Chunk, None, None]:
        url, check = f"/v2/models/{self.model}/generate_stream", _deadline(timeout)
        finished = False
        try:
            with self._http.stream("POST", url, json=fields, timeout=_wait(timeout)) as response:
                if response.is_error:
                    response.read()
                    raise errors.from_http(response.status_code, _sentence(response.text))
                for event in httpx2.EventSource(response):
                    check()
                    chunk = _decode(event.data)
                    finished = chunk.finish_reason is not None
                    yield chunk
        except httpx2.ReadTimeout:
            if not finished:
                raise errors.DeadlineExceeded(_TOO_LATE.format(timeout)) from None
        except httpx2.TransportError as error:
            if not finished:
                raise _unconnected(error, timeout) from None
        if not finished:
            raise errors.Unavailable(_CUT_OFF)


class AsyncHttpClient(AsyncClient):
    """Asyncio client; the arguments are those of `HttpClient`."""

    def __init__(
        self,
        url: str = "localhost:8000",
        model: str = "tandem",
        *,
        details: bool = True,
        headers: Mapping[str, str] | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(model, details)
        self._http = httpx2.AsyncClient(
            base_url=_base_url(url), headers=headers, limits=_LIMITS, transport=transport
        )

    async def is_ready(self) -> bool:
        """Whether the model can answer."""
        try:
            return (await self._http.get(f"/v2/models/{self.model}/ready")).status_code == 200
        except httpx2.TransportError:
            return False

    async def close(self) -> None:
        """Close the connections, which cancels what is still under way on them."""
        await self._http.aclose()

    async def _open(self, fields: Fields, timeout: float | None) -> AsyncGenerator[Chunk, None]:
        url, check = f"/v2/models/{self.model}/generate_stream", _deadline(timeout)
        finished = False
        try:
            request = self._http.stream("POST", url, json=fields, timeout=_wait(timeout))
            async with request as response:
                if response.is_error:
                    await response.aread()
                    raise errors.from_http(response.status_code, _sentence(response.text))
                async for event in httpx2.EventSource(response):
                    check()
                    chunk = _decode(event.data)
                    finished = chunk.finish_reason is not None
                    yield chunk
        except httpx2.ReadTimeout:
            if not finished:
                raise errors.DeadlineExceeded(_TOO_LATE.format(timeout)) from None
        except httpx2.TransportError as error:
            if not finished:
                raise _unconnected(error, timeout) from None
        if not finished:
            raise errors.Unavailable(_CUT_OFF)
