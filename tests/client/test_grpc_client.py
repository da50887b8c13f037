"""The gRPC clients against a service in this process."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from tandem_client import (
    AsyncGrpcClient,
    Cancelled,
    DeadlineExceeded,
    GrpcClient,
    InvalidArgument,
    ServerError,
    Unavailable,
)

WAIT = 10.0  # seconds: long enough for any machine, never reached when all is well


def test_a_completion(service):
    with GrpcClient(service.url) as client:
        completion = client.generate("hé")
    assert (completion.text, completion.finish_reason) == ("hé!", "stop")
    assert completion.token_ids == (1, 2, 1, 2)


def test_a_request_with_an_id_is_told_its_name(service):
    with GrpcClient(service.url) as client:
        assert client.generate("x", request_id="order 66").request_id == "order 66-7"
        assert client.generate("x").request_id is None
    with GrpcClient(service.url, details=False) as client:
        assert client.generate("x", request_id="order 67").request_id is None
    assert [request.id for request in service.requests] == ["order 66", "", "order 67"]


def test_readiness(service):
    with GrpcClient(service.url, headers={"key": "4711"}, status_codes=True) as client:
        assert client.is_ready()
    assert service.asked_with["key"] == "4711"
    assert "triton_grpc_error" not in service.asked_with
    with GrpcClient(service.url, "other") as client:
        assert not client.is_ready()


def test_errors_are_typed(service):
    with GrpcClient(service.url) as client:
        with pytest.raises(InvalidArgument, match=r"^say what$"):
            client.generate("bad")
        with pytest.raises(ServerError, match=r"^it broke$"):
            client.generate("broken")
        with pytest.raises(Unavailable, match="before the answer was complete"):
            client.generate("cut")
        with pytest.raises(DeadlineExceeded):
            client.generate("endless", timeout=0.2)
    coded = GrpcClient(service.url, status_codes=True)
    with coded, pytest.raises(InvalidArgument, match="with a code"):
        coded.generate("bad")
    with GrpcClient("localhost:1") as client:
        assert not client.is_ready()
        with pytest.raises(Unavailable, match="no connection to the server"):
            client.generate("x")


def test_a_refused_request_is_read_to_its_end(service):
    # Triton keeps a request for ever whose client hangs up while the last response is on its way.
    with GrpcClient(service.url) as client, pytest.raises(InvalidArgument, match="say what"):
        client.generate("bad, then busy")
    assert not service.hung_up.get(timeout=WAIT)


@pytest.mark.parametrize("then", ["cut", "late"])
def test_an_answer_is_complete_whatever_comes_behind_it(service, then):
    async def asked():
        async with AsyncGrpcClient(service.url) as client:
            return await client.generate(f"complete, then {then}", timeout=0.5)

    with GrpcClient(service.url) as client:
        assert client.generate(f"complete, then {then}", timeout=0.5).finish_reason == "stop"
        with pytest.raises(InvalidArgument, match="say what"):
            client.generate("bad, then busy", timeout=0.2)
    assert asyncio.run(asked()).finish_reason == "stop"


def test_leaving_the_stream_cancels_the_request(service):
    with GrpcClient(service.url) as client:
        for _chunk in client.stream("endless"):
            break
        assert service.cancelled.wait(WAIT)


def test_cancelling_the_task_cancels_the_request(service):
    async def run():
        async with AsyncGrpcClient(service.url) as client:
            assert await client.is_ready()
            first = asyncio.Event()

            async def read():
                async for _chunk in client.stream("endless"):
                    first.set()

            task = asyncio.create_task(read())
            await first.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(service.cancelled.wait, WAIT)

    asyncio.run(run())


def test_streams_share_one_client(service):
    async def run():
        async with AsyncGrpcClient(service.url) as client:
            completions = await asyncio.gather(*(client.generate(str(i)) for i in range(8)))
        assert [completion.text for completion in completions] == [f"{i}!" for i in range(8)]

    asyncio.run(run())
    with GrpcClient(service.url) as client, ThreadPoolExecutor(4) as pool:
        texts = [completion.text for completion in pool.map(client.generate, map(str, range(8)))]
    assert texts == [f"{i}!" for i in range(8)]


def test_who_waits_while_the_client_is_closed_is_told(service):
    """That is not the end of the task that waits: whoever groups tasks would not notice it."""

    async def run():
        client = AsyncGrpcClient(service.url)
        begun = asyncio.Event()

        async def read():
            async for _ in client.stream("endless"):
                begun.set()

        reading = asyncio.create_task(read())
        await asyncio.wait_for(begun.wait(), WAIT)
        await client.close()
        with pytest.raises(Cancelled, match="the client was closed"):
            await asyncio.wait_for(reading, WAIT)

    asyncio.run(run())


def test_a_cancelled_task_stays_cancelled(service):
    async def run():
        async with AsyncGrpcClient(service.url) as client:
            reading = asyncio.create_task(client.generate("endless"))
            await asyncio.sleep(0.2)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading

    asyncio.run(run())
