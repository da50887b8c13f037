"""The interface all clients share; a protocol adds how a stream is opened."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any

from tandem_client.collect import Collector
from tandem_client.params import GenerationParams, ParamsLike
from tandem_client.types import Chunk, Completion
from tandem_client.wire import Fields, Prompt, check_text, request_fields


class ChunkStream(Iterator[Chunk]):
    """The chunks of one request, which is sent when the first is asked for.

    Leaving it early cancels the request on the server: `close`, by the thread that reads it, the
    end of a `with` block, or dropping the last reference.
    """

    def __init__(self, chunks: Generator[Chunk, None, None]) -> None:
        self._chunks = chunks

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def close(self) -> None:
        """Cancel what is still under way."""
        self._chunks.close()

    def __enter__(self) -> "ChunkStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncChunkStream(AsyncIterator[Chunk]):
    """As `ChunkStream`; cancelling the task that waits for a chunk cancels the request too."""

    def __init__(self, chunks: AsyncGenerator[Chunk, None]) -> None:
        self._chunks = chunks

    async def __anext__(self) -> Chunk:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        """Cancel what is still under way."""
        await self._chunks.aclose()

    async def __aenter__(self) -> "AsyncChunkStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Client(ABC):
    """A blocking client; any number of threads may stream through one at the same time."""

    def __init__(self, model: str, details: bool) -> None:
        check_text("The model's name", model)
        self.model = model
        self._details = details

    def stream(
        self,
        prompt: Prompt,
        params: ParamsLike = None,
        *,
        timeout: float | None = None,
        request_id: str | None = None,
        **overrides: Any,
    ) -> ChunkStream:
        """Stream a completion.

        `timeout` bounds the whole request in seconds, here and on the server (over HTTP a server
        that hangs is given up so long after what it has sent last). `request_id` begins the
        server's name for the request, in its log and in the answer's `request_id`.
        """
        asked = GenerationParams.of(params, **overrides)
        fields = request_fields(prompt, asked, self._details, timeout, request_id)
        return ChunkStream(self._open(fields, timeout))

    def generate(
        self,
        prompt: Prompt,
        params: ParamsLike = None,
        *,
        timeout: float | None = None,
        request_id: str | None = None,
        **overrides: Any,
    ) -> Completion:
        """Wait for a whole completion; it is streamed all the same, so that it can be timed."""
        collector = Collector()
        stream = self.stream(prompt, params, timeout=timeout, request_id=request_id, **overrides)
        with stream as chunks:
            for chunk in chunks:
                collector.add(chunk)
        return collector.completion()

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the model can answer; False when the server cannot be reached."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    @abstractmethod
    def _open(self, fields: Fields, timeout: float | None) -> Generator[Chunk, None, None]:
        """Send the request and yield its chunks; cancel it when the generator is closed."""

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(ABC):
    """An asyncio client, to be created inside a running event loop."""

    def __init__(self, model: str, details: bool) -> None:
        check_text("The model's name", model)
        self.model = model
        self._details = details

    def stream(
        self,
        prompt: Prompt,
        params: ParamsLike = None,
        *,
        timeout: float | None = None,
        request_id: str | None = None,
        **overrides: Any,
    ) -> AsyncChunkStream:
        """Stream a completion.

        `timeout` bounds the whole request in seconds, here and on the server (over HTTP a server
        that hangs is given up so long after what it has sent last). `request_id` begins the
        server's name for the request, in its log and in the answer's `request_id`.
        """
        asked = GenerationParams.of(params, **overrides)
        fields = request_fields(prompt, asked, self._details, timeout, request_id)
        return AsyncChunkStream(self._open(fields, timeout))

    async def generate(
        self,
        prompt: Prompt,
        params: ParamsLike = None,
        *,
        timeout: float | None = None,
        request_id: str | None = None,
        **overrides: Any,
    ) -> Completion:
        """Wait for a whole completion; it is streamed all the same, so that it can be timed."""
        collector = Collector()
        stream = self.stream(prompt, params, timeout=timeout, request_id=request_id, **overrides)
        async with stream as chunks:
            async for chunk in chunks:
                collector.add(chunk)
        return collector.completion()

    @abstractmethod
    async def is_ready(self) -> bool:
        """Whether the model can answer; False when the server cannot be reached."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""

    @abstractmethod
    def _open(self, fields: Fields, timeout: float | None) -> AsyncGenerator[Chunk, None]:
        """Send the request and yield its chunks; cancel it when the generator is closed."""

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
