"""What clients and Triton see of each other over HTTP, by one that is none."""

import asyncio
import gzip
import json
import tracemalloc
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from tandem.front import http_front, room
from tandem.front.bodies import Body
from tandem.front.gate import Full, Gate, Refusals
from tandem.front.http_front import JSON_BYTES, HttpFront, MetricsFront
from tandem.front.room import for_bodies, for_calls

PATH = "/v2/models/tandem/generate_stream"
GENERATE = PATH.removesuffix("_stream")
ASKED = {"text_input": "a"}


FULL = "9 requests are here, as many as max_num_seqs and max_queue_size allow: try again later."


class Triton:
    """Says one piece, and then what it is told to."""

    def __init__(self):
        self.asked, self.goes_on = [], asyncio.Event()
        self.piece, self.pieces, self.breaks_off = b"data", 0, False
        self.is_full = False
        self.misreads, self.declares = False, True

    async def show(self, request):
        """Some metrics."""
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"some")
        await self.goes_on.wait()
        if self.breaks_off:
            request.transport.abort()
        return response

    def declare(self):
        """The model's inputs."""
        if not self.declares:
            return web.Response(status=400, text="{}")
        kinds = {"n": "UINT32", "m": "BYTES", "l": "UINT8"}
        inputs = [{"name": name, "datatype": kind} for name, kind in kinds.items()]
        return web.json_response({"inputs": inputs})

    async def handle(self, request):
        if request.method == "GET":
            return self.declare()
        assert request.content_length is not None  # its length is said, as by its client
        self.asked.append(await request.json())
        if "cancel" in self.asked[-1]:
            return web.json_response({})
        if self.is_full:
            # As Triton 2.51 has it, with the code of any other error.
            body = json.dumps({"error": FULL})
            stream = request.path.endswith("_stream")
            return web.Response(text=f"data: {body}\n\n" if stream else body, status=400)
        if self.misreads:
            kind = "unsigned-integer"
            said = f"Unable to parse 'data': attempt to access JSON non-{kind} as {kind}"
            return web.json_response({"error": said}, status=500)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(self.piece)
        await self.goes_on.wait()
        for _ in range(self.pieces):
            await response.write(self.piece)
        if self.breaks_off:
            request.transport.abort()
        return response

    def taken_back(self):
        return [one["cancel"] for one in self.asked if "cancel" in one]


@asynccontextmanager
async def world(calls=None, bodies=None, refusals=None):
    """A Triton, a client's session, and where its front is."""
    triton = Triton()
    behind = RawTestServer(triton.handle)
    async with asyncio.timeout(20), aiohttp.ClientSession() as session:
        await behind.start_server()
        front = HttpFront(
            f"127.0.0.1:{behind.port}",
            session,
            Gate(calls or for_calls(10), Full(), refusals or Refusals()),
            bodies or for_bodies(0, 1 << 20),
            1 << 20,
        )
        before = RawTestServer(front.handle)
        await before.start_server(auto_decompress=False)
        triton.before = before.runner.server
        async with aiohttp.ClientSession() as client:
            yield triton, client, before.make_url(PATH)
        triton.goes_on.set()
        await before.close()
        await front.close()
        await behind.close()


@asynccontextmanager
async def scraped(triton):
    """A client's session, and where metrics are asked of the front."""
    behind = RawTestServer(triton.show)
    async with asyncio.timeout(20), aiohttp.ClientSession() as session:
        await behind.start_server()
        before = RawTestServer(MetricsFront(f"127.0.0.1:{behind.port}", session, Refusals()).handle)
        await before.start_server()
        yield session, before.make_url("/metrics")
        triton.goes_on.set()
        await before.close()
        await behind.close()


async def until(holds):
    while not holds():
        await asyncio.sleep(0.01)


def test_who_leaves_is_taken_back_by_the_name_that_it_got():
    calls, bodies = for_calls(10), for_bodies(0, 1 << 20)

    async def run():
        async with world(calls, bodies) as (triton, client, url):
            async with client.post(url, json=ASKED) as answer:
                assert await answer.content.readany() == b"data"
                assert (calls.taken, bodies.taken) == (1, 0)  # it has been passed on
                answer.close()
            await until(triton.taken_back)
            assert triton.taken_back() == [triton.asked[0]["cancel_id"]]
            assert (calls.taken, bodies.taken) == (0, 0)

    asyncio.run(run())


def test_who_reads_nothing_has_left(monkeypatch):
    monkeypatch.setattr(http_front, "STALL_S", 0.3)

    async def run():
        async with world() as (triton, client, url):
            triton.piece, triton.pieces = b"a" * (1 << 20), 64
            async with client.post(url, json=ASKED) as answer:
                await answer.content.readany()
                triton.goes_on.set()
                await until(triton.taken_back)
                await until(lambda: not triton.before.connections)  # what it did not read is gone
                with pytest.raises(aiohttp.ClientError):
                    await answer.read()

    asyncio.run(run())


@pytest.mark.parametrize("written", [0, 1])
def test_who_has_left_when_something_is_written_is_taken_back_and_fills_no_log(
    written, monkeypatch, caplog
):
    """Before aiohttp cancels what answers it."""
    relay = http_front._relay
    calls = for_calls(10)

    async def left_meanwhile(answer, request):
        async def pieces():
            for _ in range(written):
                yield b"data"
            request.transport.close()
            yield b"data"

        if written:
            monkeypatch.setattr(type(answer.content), "iter_any", lambda content: pieces())
        else:
            request.transport.close()
        return await relay(answer, request)

    async def run():
        async with world(calls) as (triton, client, url):
            monkeypatch.setattr(http_front, "_relay", left_meanwhile)
            with pytest.raises(aiohttp.ClientError):
                async with client.post(url, json=ASKED) as answer:
                    await answer.read()
            await until(triton.taken_back)
            assert triton.taken_back() == [triton.asked[0]["cancel_id"]]
            assert calls.taken == 0

    asyncio.run(run())
    assert not caplog.records


@pytest.mark.parametrize("declares", [True, False])
@pytest.mark.parametrize(
    ("value", "wrong"), [("a", True), (True, True), ([1, "a"], True), ([[1]], True), (1, False)]
)
@pytest.mark.parametrize("where", ["beside", "parameters"])
def test_a_value_that_triton_cannot_read_is_named_where_that_is_known(
    value, wrong, declares, where
):
    calls = for_calls(10)
    some = {"n": value, "m": 1, "o" * 2000: 5}
    body = {"other": "a", "parameters": some} if where == "parameters" else some | {"other": "a"}

    async def run():
        async with world(calls) as (triton, client, url):
            triton.misreads, triton.declares = True, declares
            async with client.post(url, json=body) as answer:
                assert answer.status == 400
                said = (await answer.json())["error"]
            named = "'n'" if declares and wrong else "the body"
            assert said.startswith(f"A value of {named}")
            assert " is no unsigned-integer: send one there" in said
            assert (calls.taken, triton.taken_back()) == (0, [])

    asyncio.run(run())


def test_an_answer_that_breaks_off_is_no_whole_one():
    async def run():
        async with world() as (triton, client, url):
            triton.breaks_off = True
            async with client.post(url, json=ASKED) as answer:
                await answer.content.readany()
                triton.goes_on.set()
                with pytest.raises(aiohttp.ClientError):
                    await answer.read()

    asyncio.run(run())


def test_who_has_its_answer_is_not_taken_back():
    async def run():
        async with world() as (triton, client, url):
            triton.goes_on.set()
            async with client.post(url, json=ASKED) as answer:
                assert await answer.read() == b"data"
            await asyncio.sleep(0.2)
            assert len(triton.asked) == 1

    asyncio.run(run())


def test_a_body_that_there_is_no_room_for_is_refused_and_leaves_none_taken():
    bodies = for_bodies(0, 1000)

    async def run():
        async with world(bodies=bodies) as (triton, client, url):
            async with client.post(url, json={"text_input": "a" * 2000}) as answer:
                assert answer.status == 503
                assert "bytes of requests are under way" in (await answer.json())["error"]
            assert (bodies.taken, triton.asked) == (0, [])

    asyncio.run(run())


def test_a_body_that_is_passed_on_is_kept_no_longer():
    async def run():
        body = Body(for_bodies(0, 100))
        body.content = b"data"
        body.take(8)
        assert [piece async for piece in body.pieces()] == [b"data"]
        assert (body.content, body.taken) == (b"", 0)

    asyncio.run(run())


async def slow_body(first, goes_on, then=b""):
    yield first
    await goes_on.wait()
    yield then


@pytest.mark.parametrize("quick", [0.1, 60.0])
def test_a_body_that_is_on_its_way_for_long_gives_way_to_others(quick, monkeypatch):
    monkeypatch.setattr(room, "QUICK_S", quick)
    bodies, goes_on = for_bodies(0, 1000), asyncio.Event()

    async def send(client, url, data):
        async with client.post(url, data=data) as answer:
            return answer.status, (await answer.read()).decode()

    async def run():
        async with world(bodies=bodies) as (triton, client, url):
            triton.goes_on.set()
            slow = asyncio.create_task(send(client, url, slow_body(b"{" + b" " * 600, goes_on)))
            await until(lambda: bodies.taken == 601)
            await asyncio.sleep(0.2)
            status, _ = await send(client, url, json.dumps({"text_input": "a" * 300}))
            if quick > 1:
                assert (status, bodies.taken, slow.done()) == (503, 601, False)
                slow.cancel()
            else:
                assert status == 200
                async with asyncio.timeout(5):  # and not behind its pause alone
                    status, said = await slow
                assert status == 503
                assert "no room while this one was on its way for longest" in said
            await until(lambda: bodies.taken == 0)
            assert not bodies.arriving

    asyncio.run(run())


def test_a_body_that_is_on_its_way_for_longest_has_others_not_give_way(monkeypatch):
    monkeypatch.setattr(room, "QUICK_S", 0.1)
    bodies = for_bodies(0, 1000)
    ways = [asyncio.Event(), asyncio.Event()]

    async def send(client, url, data):
        async with client.post(url, data=data) as answer:
            return answer.status

    async def run():
        async with world(bodies=bodies) as (triton, client, url):
            triton.goes_on.set()
            start = b'{"text_input": "' + b"a" * 300
            first = asyncio.create_task(send(client, url, slow_body(start, ways[0], b"b" * 600)))
            await until(lambda: bodies.taken)
            other = asyncio.create_task(send(client, url, slow_body(start, ways[1], b'"}')))
            await until(lambda: bodies.taken == 2 * len(start))
            await asyncio.sleep(0.2)
            ways[0].set()
            assert await first == 503
            ways[1].set()
            assert await other == 200
            await until(lambda: bodies.taken == 0)

    asyncio.run(run())


@pytest.mark.parametrize("limit", ["READ_S", "PAUSE_S"])
def test_a_body_that_does_not_arrive_is_refused(limit, monkeypatch):
    monkeypatch.setattr(f"tandem.front.bodies.{limit}", 0.2)

    async def slowly():
        yield b"{"
        await asyncio.sleep(2)
        yield b"}"

    async def run():
        async with (
            world() as (triton, client, url),
            client.post(url, data=slowly()) as answer,
        ):
            assert (answer.status, triton.asked) == (400, [])
            said = (await answer.json())["error"]
            assert ("not arrived in 0.2 s" if limit == "READ_S" else "paused for 0.2:") in said

    asyncio.run(run())


def test_what_is_far_larger_when_unpacked_is_not_unpacked():
    packed = gzip.compress(bytes(64 << 20), 1)

    async def run():
        async with world() as (triton, client, url):
            tracemalloc.start()
            async with client.post(
                url, data=packed, headers={"Content-Encoding": "gzip"}
            ) as answer:
                assert (answer.status, triton.asked) == (413, [])
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
            tracemalloc.stop()

    asyncio.run(run())


PACKED = gzip.compress(json.dumps(ASKED).encode())


@pytest.mark.parametrize(
    "packed",
    [PACKED[:-1], PACKED[:-9], PACKED * 2, PACKED + b"a"],
    ids=["a byte less", "no checksum", "twice", "a byte more"],
)
def test_what_is_not_one_whole_when_unpacked_is_refused(packed):
    async def run():
        headers = {"Content-Encoding": "gzip"}
        async with world() as (triton, client, url):
            async with client.post(url, data=packed, headers=headers) as answer:
                assert (answer.status, triton.asked) == (400, [])
                assert "one whole packed by gzip" in (await answer.json())["error"]
            triton.goes_on.set()
            async with client.post(url, data=PACKED, headers=headers) as answer:
                assert answer.status == 200
            assert triton.asked[0]["text_input"] == "a"

    asyncio.run(run())


def test_a_body_that_is_raw_is_refused_by_a_sentence_of_its_own():
    async def run():
        async with (
            world() as (triton, client, url),
            client.post(
                url.with_path("/v2/models/tandem/infer"), data=b"a", headers={JSON_BYTES: "0"}
            ) as answer,
        ):
            assert (answer.status, triton.asked) == (400, [])
            assert f"{JSON_BYTES} is 0" in (await answer.json())["error"]

    asyncio.run(run())


@pytest.mark.parametrize("way", ["breaks off", "hangs"])
def test_metrics_that_do_not_come_say_so(way, monkeypatch):
    monkeypatch.setattr(http_front, "_SCRAPE", aiohttp.ClientTimeout(total=0.3))

    async def run():
        triton = Triton()
        triton.breaks_off = way == "breaks off"
        async with scraped(triton) as (client, url):
            if triton.breaks_off:
                triton.goes_on.set()
            async with client.get(url) as answer:
                assert answer.status == 503
                assert "Triton has ended" in (await answer.json())["error"]

    asyncio.run(run())


@pytest.mark.parametrize(("method", "path"), [("GET", PATH), ("POST", "/v2/health/ready")])
def test_a_path_that_is_asked_by_another_method_says_so(method, path):
    async def run():
        async with (
            world() as (triton, client, url),
            client.request(method, url.with_path(path)) as answer,
        ):
            wanted = "POST" if method == "GET" else "GET"
            assert (answer.status, answer.headers["Allow"], triton.asked) == (405, wanted, [])
            assert f"by {wanted}" in (await answer.json())["error"]

    asyncio.run(run())


@pytest.mark.parametrize("body", ["[1]", "5", '"text"'])
def test_a_body_that_is_no_object_is_refused(body):
    async def run():
        async with world() as (triton, client, url), client.post(url, data=body) as answer:
            assert (answer.status, triton.asked) == (400, [])
            assert "no object" in (await answer.json())["error"]

    asyncio.run(run())


@pytest.mark.parametrize("path", [PATH, GENERATE])
def test_a_full_model_is_not_asked_but_to_take_back(path):
    refusals = Refusals()

    async def run():
        async with world(refusals=refusals) as (triton, client, url):
            triton.is_full, url = True, url.with_path(path)
            for _ in range(3):
                async with client.post(url, json={"text_input": "a"}) as answer:
                    assert (answer.status, FULL in await answer.text()) == (503, True)
            assert len(triton.asked) == 1
            async with client.post(url, json={"cancel": "mine"}) as answer:
                assert answer.status == 200
            assert triton.taken_back() == ["mine"]
            triton.is_full = False  # as one of its requests has ended
            triton.goes_on.set()
            async with client.post(url, json={"text_input": "a"}) as answer:
                assert answer.status == 200

    asyncio.run(run())
    assert b'reason="queue_full"} 2.0' in refusals.shown()
