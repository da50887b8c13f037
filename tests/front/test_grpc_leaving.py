"""What Triton sees of clients that leave, by one that is none."""

import asyncio
from contextlib import suppress

import grpc
import pytest

from tandem.front import grpc_stream
from tandem.front.grpc_front import STREAM
from tandem.front.room import for_calls
from tests.front.streams import (
    ASKED,
    Triton,
    answer_of,
    final,
    front_of,
    started,
    until,
    world,
)
from tests.triton.raw import RawTensor, message, strings


@pytest.mark.parametrize("half_closed", [False, True])
def test_who_leaves_is_taken_back_and_no_stream_is_cancelled(half_closed, monkeypatch):
    monkeypatch.setattr(grpc_stream, "LEAVE_S", 15.0)

    async def run():
        async with world() as (triton, stream):
            if half_closed:
                await stream.done_writing()
                await asyncio.sleep(0.2)
            stream.cancel()
            await until(lambda: triton.ends)
            assert (triton.ends, triton.taken_back) == (["closed"], list(triton.may_end))

    asyncio.run(run())


def test_who_is_not_taken_back_is_cancelled(monkeypatch):
    monkeypatch.setattr(grpc_stream, "LEAVE_S", 0.3)
    room = for_calls(100)

    async def run():
        async with world(room=room) as (triton, stream):
            triton.takes_back = False
            stream.cancel()
            await until(lambda: triton.ends)
            assert (triton.ends, len(triton.taken_back)) == (["cancelled"], 2)
            await until(lambda: room.taken == 0)

    asyncio.run(run())


def test_who_has_all_answers_is_not_taken_back():
    async def run():
        async with world() as (triton, stream):
            for may_end in triton.may_end.values():
                may_end.set()
                assert final(await stream.read())
            stream.cancel()
            await until(lambda: triton.ends)
            assert (triton.ends, triton.taken_back) == (["closed"], [])

    asyncio.run(run())


def test_what_fails_as_a_client_leaves_keeps_no_place(monkeypatch):
    room = for_calls(100)

    async def fail(*_):
        raise RuntimeError("by the test")

    async def run():
        async with world(room=room) as (triton, stream):
            monkeypatch.setattr(grpc_stream.GrpcStream, "_take_back", fail)
            stream.cancel()
            await until(lambda: triton.ends)
            await until(lambda: room.taken == 0)

    asyncio.run(run())


@pytest.mark.parametrize("names", [True, False])
def test_who_leaves_is_taken_back_whatever_was_answered_since(names, monkeypatch):
    """The first request, which is still under way."""
    monkeypatch.setattr(grpc_stream, "MOST_NAMES", 4)
    monkeypatch.setattr(grpc_stream, "LEAVE_S", 15.0)

    async def run():
        async with world() as (triton, stream):
            second = list(triton.may_end)[1]
            triton.may_end[second].set()
            assert final(await stream.read())
            triton.answers_once = True
            for index in range(20):
                own = f"order {index}" if names else ""
                await stream.write(message([], {}, own))
                answer = answer_of(await stream.read())
                assert (final(answer.SerializeToString()), answer.infer_response.id) == (True, own)
            stream.cancel()
            await until(lambda: triton.ends)
            assert (triton.ends, triton.taken_back) == (["closed"], [next(iter(triton.may_end))])

    asyncio.run(run())


def test_who_leaves_is_taken_back_where_triton_takes_no_more_of_the_stream(monkeypatch):
    monkeypatch.setattr(grpc_stream, "LEAVE_S", 2.0)

    async def run():
        async with world() as (triton, stream):
            first = list(triton.may_end)
            triton.hears.clear()
            large = message([RawTensor("text_input", "BYTES", [1], strings(b"a" * (1 << 20)))], {})
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    while True:  # until gRPC's windows are full
                        await stream.write(large)
            stream.cancel()
            await until(lambda: set(first) <= set(triton.taken_back))
            triton.hears.set()

    asyncio.run(run())


def test_who_reads_nothing_has_left(monkeypatch):
    monkeypatch.setattr(grpc_stream, "STALL_S", 0.3)

    async def run():
        async with world() as (triton, stream):
            triton.text = b"a" * (1 << 20)  # which does not fit into gRPC's windows
            for _ in range(20):
                await stream.write(ASKED)
            await until(lambda: triton.ends)
            assert triton.ends == ["closed"]
            assert set(triton.taken_back) >= {*list(triton.may_end)[-5:]}
            with pytest.raises(grpc.aio.AioRpcError, match=r"been read for 0\.3 s"):
                while True:
                    await stream.read()

    asyncio.run(run())


def test_a_front_that_fails_says_so_and_takes_back(monkeypatch):
    async def run():
        async with world() as (triton, stream):
            monkeypatch.setattr(grpc_stream, "check_message", lambda *_: 1 / 0)
            await stream.write(ASKED)
            with pytest.raises(grpc.aio.AioRpcError, match="division by zero"):
                await stream.read()
            await until(lambda: triton.ends)
            assert (triton.ends, triton.taken_back) == (["closed"], list(triton.may_end))

    asyncio.run(run())


def test_a_front_that_fails_does_not_wait_for_a_client_that_reads_nothing(monkeypatch):
    monkeypatch.setattr(grpc_stream, "LEAVE_S", 0.3)
    room = for_calls(100)

    async def run():
        async with world(room=room) as (triton, stream):
            triton.text = b"a" * (1 << 20)  # which does not fit into gRPC's windows
            for _ in range(20):
                await stream.write(ASKED)
            await until(lambda: len(triton.may_end) == 22)
            await asyncio.sleep(0.3)
            monkeypatch.setattr(grpc_stream, "check_message", lambda *_: 1 / 0)
            await stream.write(ASKED)
            await until(lambda: room.taken == 0)

    asyncio.run(run())


def test_a_front_that_ends_takes_back_what_runs():
    async def run():
        triton = Triton()
        async with started(triton) as channel:
            front = front_of(channel)
            async with started(front) as client:
                streams = [client.stream_stream(STREAM)() for _ in range(20)]
                for stream in streams:
                    await stream.write(ASKED)
                    await stream.read()
            await front.close()
            assert (triton.ends, len(triton.taken_back)) == (["closed"] * 20, 20)

    asyncio.run(run())
