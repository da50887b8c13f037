"""A client that leaves makes room at once, wherever its request is.

On the small server one request runs and one waits.
"""

import asyncio
import subprocess
import sys

import httpx2
import pytest

from tandem.metrics import RUNNING, WAITING
from tandem_client import AsyncGrpcClient, AsyncHttpClient, GrpcClient, HttpClient, Unavailable
from tests.triton.conftest import PROMPT
from tests.triton.protocol import WAIT, post, responses, sampling, stream, text_of
from tests.triton.scrape import ended, settled, waited

LONG = {"max_tokens": 1900, "temperature": 0.0, "ignore_eos": True}
SHORT = {"max_tokens": 2, "temperature": 0.0, "ignore_eos": True}


@pytest.fixture
def soon(small):
    """Checks that as many requests were dropped, that none was computed to its end instead, and
    that the next one is answered."""
    before = settled(small)

    def check(count=1):
        dropped = ended(before, "abort") + count
        found = waited(small, lambda found: idle(found) and ended(found, "abort") >= dropped)
        assert ended(found, "abort") == dropped
        assert ended(found, "length") == ended(before, "length")
        assert text_of(stream(small.grpc, PROMPT, **SHORT))

    return check


def idle(found):
    return found[RUNNING,] == found[WAITING,] == 0


def test_an_official_client_that_cancels_its_stream(small, soon):
    inputs = {"text_input": PROMPT, "stream": True, "sampling_parameters": sampling(**LONG)}
    answer = responses(small.grpc, inputs)
    assert next(answer).text
    answer.close()
    soon()


def test_an_http_client_that_hangs_up(small, soon):
    # Triton looks at a connection when it writes to it, so only a streamed request can be noticed.
    url = f"http://{small.http}/v2/models/tandem/generate_stream"
    body = {"text_input": PROMPT, "sampling_parameters": sampling(**LONG), "stream": True}
    with httpx2.stream("POST", url, json=body, timeout=WAIT) as response:
        assert next(response.iter_lines()).startswith("data: ")
    soon()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_leaving_the_iterator(small, soon, protocol):
    kind = {"grpc": GrpcClient, "http": HttpClient}[protocol]
    with kind(getattr(small, protocol)) as client:
        for chunk in client.stream(PROMPT, LONG):
            assert chunk.token_ids
            break
        soon()


STREAMING = """
import sys
from tandem_client import GrpcClient, HttpClient
kind, url, prompt = sys.argv[1:]
client = {"grpc": GrpcClient, "http": HttpClient}[kind](url)
for chunk in client.stream(prompt, max_tokens=1000, ignore_eos=True):
    print(chunk.num_tokens, flush=True)
"""


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_client_that_is_killed(small, soon, protocol):
    command = [sys.executable, "-c", STREAMING, protocol, getattr(small, protocol), PROMPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
        assert int(client.stdout.readline()) > 0
        client.kill()
    soon()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_client_that_stops_reading_holds_up_nobody(urls, greedy_text, protocol):
    kind, url = {"grpc": GrpcClient, "http": HttpClient}[protocol], getattr(urls, protocol)
    asked = LONG | {"max_tokens": 400}
    before = ended(settled(urls), "length")
    whole = text_of(stream(urls.grpc, PROMPT, **asked))
    with kind(url) as idle, kind(url) as busy, idle.stream(PROMPT, asked) as chunks:
        text = next(chunks).text
        assert busy.generate(PROMPT, SHORT, max_tokens=64).text == greedy_text
        # all three, though the first of them is not read
        found = waited(urls, lambda found: ended(found, "length") == before + 3)
        assert ended(found, "length") == before + 3
        text += "".join(chunk.text for chunk in chunks)  # Triton has kept it
    assert text == whole


@pytest.mark.parametrize(("protocol", "times"), [("grpc", 3), ("http", 1)])
def test_cancelling_tasks_running_and_queued(small, soon, protocol, times):
    kind = {"grpc": AsyncGrpcClient, "http": AsyncHttpClient}[protocol]

    async def run():
        client = kind(getattr(small, protocol))
        async with client, client.stream(PROMPT, LONG) as running:
            await anext(running)
            # Over gRPC each finds the place that the one before left. Over HTTP Triton does not
            # read a connection before its first response: it keeps its place until its turn.
            for _ in range(times):
                queued = await asyncio.wait_for(one_that_waits(client), WAIT)
                queued.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await queued

    asyncio.run(run())
    soon(1 + times)


def test_overload_is_refused_with_what_to_do(small):
    async def run():
        async with AsyncGrpcClient(small.grpc) as client, client.stream(PROMPT, LONG) as running:
            await anext(running)
            queued = await one_that_waits(client)
            with pytest.raises(Unavailable, match=r"max_queue_size.*try again") as error:
                await client.generate(PROMPT, SHORT)
            plain = await asyncio.to_thread(post, small.http, {"text_input": PROMPT})
            queued.cancel()
            return error.value, plain

    error, plain = asyncio.run(run())
    assert error.retriable
    assert plain.status_code == 400  # as Triton answers all errors of models: the words tell
    assert plain.json()["error"].endswith(str(error))


async def one_that_waits(client):
    """A task whose request waits: two that were sent after it have been refused."""
    waiting, outlived = asyncio.create_task(client.generate(PROMPT, LONG)), 0
    while outlived < 2:
        other = asyncio.create_task(client.generate(PROMPT, LONG))
        done, left = await asyncio.wait({waiting, other}, return_when=asyncio.FIRST_COMPLETED)
        assert all(isinstance(task.exception(), Unavailable) for task in done)
        outlived = outlived + 1 if waiting in left else 0
        waiting = left.pop() if left else asyncio.create_task(client.generate(PROMPT, LONG))
    return waiting


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_cancelling_at_any_moment(urls, greedy_text, protocol):
    kind = {"grpc": AsyncGrpcClient, "http": AsyncHttpClient}[protocol]

    async def leave(client, delay):
        task = asyncio.create_task(client.generate("x = 1\n" * 60, LONG))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def run():
        async with kind(getattr(urls, protocol)) as client:
            await asyncio.gather(*(leave(client, moment / 100) for moment in range(40)))
            answer = await client.generate(PROMPT, SHORT, max_tokens=64)
        assert answer.text == greedy_text

    asyncio.run(asyncio.wait_for(run(), WAIT))
