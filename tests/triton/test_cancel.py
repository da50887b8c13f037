"""A client that leaves is noticed at once, wherever its request is."""

import asyncio
import time

import httpx2
import pytest

from tandem_client import AsyncGrpcClient, AsyncHttpClient, Cancelled, GrpcClient, HttpClient
from tests.triton.conftest import PROMPT
from tests.triton.protocol import WAIT, responses, sampling, stream, text_of

LONG = {"max_tokens": 100_000, "temperature": 0.0, "ignore_eos": True}
PROMPTLY = 5.0  # seconds; a cancelled request would decode for minutes


def gauges(urls):
    """The engine's requests, running and waiting."""
    text = httpx2.get(f"http://{urls.metrics}/metrics", timeout=WAIT).text
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("tandem_"))
    values = {name.split("{")[0]: float(value) for name, value in rows}
    return values["tandem_requests_running"], values["tandem_requests_waiting"]


def assert_becomes_idle(urls):
    """No request is left in the engine, and the next one is answered."""
    deadline = time.monotonic() + PROMPTLY
    while any(counts := gauges(urls)):
        assert time.monotonic() < deadline, f"running and waiting requests: {counts}"
        time.sleep(0.05)
    assert text_of(stream(urls.grpc, PROMPT, max_tokens=2))


def test_an_official_client_that_cancels_its_stream(urls):
    inputs = {"text_input": PROMPT, "stream": True, "sampling_parameters": sampling(**LONG)}
    answer = responses(urls.grpc, inputs)
    assert next(answer).text
    assert gauges(urls)[0] == 1
    answer.close()
    assert_becomes_idle(urls)


def test_a_request_that_is_not_streamed(urls):
    body = {"text_input": PROMPT, "sampling_parameters": sampling(**LONG)}
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(f"http://{urls.http}/v2/models/tandem/generate", json=body, timeout=1.0)
    assert_becomes_idle(urls)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_leaving_the_iterator(urls, protocol):
    kind = {"grpc": GrpcClient, "http": HttpClient}[protocol]
    with kind(getattr(urls, protocol)) as client:
        for chunk in client.stream(PROMPT, LONG):
            assert chunk.token_ids
            break
        assert_becomes_idle(urls)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_cancelling_many_tasks_running_and_queued(urls, protocol):
    kind = {"grpc": AsyncGrpcClient, "http": AsyncHttpClient}[protocol]

    async def run():
        client = kind(getattr(urls, protocol))
        async with client, client.stream(PROMPT, LONG) as first:
            await anext(first)
            tasks = [asyncio.create_task(client.generate(PROMPT, LONG)) for _ in range(80)]
            while sum(gauges(urls)) < 81:
                await asyncio.sleep(0.02)
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError | Cancelled) for end in ends)

    asyncio.run(asyncio.wait_for(run(), WAIT))
    assert_becomes_idle(urls)


def test_cancelling_during_a_long_prompt(urls):
    async def run():
        async with AsyncGrpcClient(urls.grpc) as client:
            tasks = [asyncio.create_task(client.generate(f"{i}\n" * 300, LONG)) for i in range(8)]
            while not any(gauges(urls)):
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), WAIT))
    assert_becomes_idle(urls)
