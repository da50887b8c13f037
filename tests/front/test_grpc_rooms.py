"""How much there may be of what a stream asks for."""

import asyncio

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tandem.front import grpc_stream
from tandem.front.grpc_front import STREAM
from tandem.front.room import for_bodies, for_calls
from tests.front.streams import (
    ASKED,
    HUGE,
    Triton,
    answer_of,
    final,
    front_of,
    started,
    until,
    world,
)
from tests.triton.raw import RawTensor, message, strings


def test_what_is_refused_takes_no_place(monkeypatch):
    monkeypatch.setattr(grpc_stream, "MOST_UNDER_WAY", 3)

    async def run():
        async with world() as (_, stream):
            for _ in range(5):
                await stream.write(HUGE)
                await stream.read()
            await stream.write(ASKED)
            assert not final(await stream.read())

    asyncio.run(run())


def test_a_client_that_never_reads_does_not_fill_triton(monkeypatch):
    """Nor one that reads, in a single stream."""
    monkeypatch.setattr(grpc_stream, "MOST_UNDER_WAY", 5)

    async def run():
        async with world() as (triton, stream):
            for _ in range(20):
                await stream.write(ASKED)
            await asyncio.sleep(0.5)
            assert len(triton.may_end) == 5
            await stream.done_writing()
            while True:
                for may_end in triton.may_end.values():
                    may_end.set()
                if await stream.read() is grpc.aio.EOF:
                    break
            assert (len(triton.may_end), triton.ends) == (22, ["closed"])

    asyncio.run(run())


def test_requests_beyond_the_most_are_refused_and_those_that_end_make_room():
    async def run():
        async with world(most_calls=2) as (triton, stream):
            await stream.write(ASKED)
            refused = service_pb2.ModelStreamInferResponse.FromString(await stream.read())
            assert "2 requests are under way" in refused.error_message
            next(iter(triton.may_end.values())).set()
            assert final(await stream.read())
            await stream.write(ASKED)
            assert not final(await stream.read())
            assert len(triton.may_end) == 3

    asyncio.run(run())


def test_what_asks_for_more_than_to_take_back_waits_for_a_place(monkeypatch):
    monkeypatch.setattr(grpc_stream, "MOST_UNDER_WAY", 2)

    async def run():
        async with world() as (triton, stream):
            tensor = RawTensor("text_input", "BYTES", [1], strings(b"a"))
            await stream.write(message([tensor], {"cancel": next(iter(triton.may_end))}))
            await asyncio.sleep(0.3)
            assert not triton.taken_back

    asyncio.run(run())


def test_a_stream_without_a_place_takes_back(monkeypatch):
    """Also where there are as many requests as there may be."""
    monkeypatch.setattr(grpc_stream, "MOST_UNDER_WAY", 2)

    async def run():
        async with world(most_calls=2) as (triton, stream):
            first = next(iter(triton.may_end))
            await stream.write(message([], {"cancel": first}))
            assert final(await stream.read())
            assert triton.taken_back == [first]

    asyncio.run(run())


def test_what_waits_for_a_place_has_its_room(monkeypatch):
    monkeypatch.setattr(grpc_stream, "MOST_UNDER_WAY", 2)
    bodies = for_bodies(0, 5 * len(ASKED))

    async def run():
        async with world(bodies=bodies) as (triton, stream):
            await until(lambda: not bodies.taken)  # they are Triton's
            await stream.write(ASKED)
            await until(lambda: bodies.taken)
            assert bodies.taken == 2 * len(ASKED)
            next(iter(triton.may_end.values())).set()
            assert final(await stream.read())
            await until(lambda: not bodies.taken)
            assert not final(await stream.read())
            next(iter(list(triton.may_end.values())[1:])).set()
            assert final(await stream.read())
            await stream.write(message([RawTensor("a", "BYTES", [1], b"b" * 1000)], {}))
            assert "bytes of requests are under way" in answer_of(await stream.read()).error_message
            assert bodies.taken == 0

    asyncio.run(run())


def test_streams_beyond_the_most_are_refused_and_those_that_end_make_room(monkeypatch):
    monkeypatch.setattr("tandem.front.grpc_front.MOST_STREAMS", 1)

    async def run():
        triton = Triton()
        async with (
            started(triton) as channel,
            started(front_of(channel)) as client,
            asyncio.timeout(20),
        ):
            for _ in range(2):
                first = client.stream_stream(STREAM)()
                await first.write(HUGE)
                await first.read()
                with pytest.raises(grpc.aio.AioRpcError, match="1 streams are under way"):
                    await client.stream_stream(STREAM)().read()
                await first.done_writing()
                assert await first.read() is grpc.aio.EOF
                await asyncio.sleep(0.1)

    asyncio.run(run())


def test_who_leaves_makes_room():
    room = for_calls(3)

    async def run():
        async with world(room=room) as (triton, stream):
            assert room.taken == 2
            stream.cancel()
            await until(lambda: triton.ends)
            await until(lambda: room.taken == 0)

    asyncio.run(run())


def test_a_client_that_asks_nothing_costs_triton_nothing():
    async def run():
        triton = Triton()
        async with started(triton) as channel:
            front = front_of(channel)
            async with started(front) as client:
                stream = client.stream_stream(STREAM)()
                await stream.write(HUGE)
                await stream.read()
                await stream.done_writing()
                assert await stream.read() is grpc.aio.EOF
                assert await stream.code() == grpc.StatusCode.OK
            assert not triton.ends and not triton.may_end

    asyncio.run(run())
