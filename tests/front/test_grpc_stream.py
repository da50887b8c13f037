"""What Triton sees of clients that leave, by one that is none."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tandem.front import grpc_stream
from tandem.front.gate import Full, Gate, Refusals
from tandem.front.grpc_front import STREAM, GrpcFront
from tandem.front.grpc_server import KnownMethods
from tandem.front.room import for_bodies, for_calls
from tests.triton.raw import RawTensor, message, strings

ASKED = message([RawTensor("text_input", "BYTES", [1], strings(b"a"))], {})
HUGE = message([RawTensor("input_ids", "INT32", [1 << 62], b"")], {})


class Triton(grpc.GenericRpcHandler):
    """Answers a request twice, the second time when it may, or when it is taken back."""

    def __init__(self):
        self.takes_back, self.text = True, b""
        self.says_nothing_at_last = self.answers_once = self.answers_without = False
        self.may_end: dict[str, asyncio.Event] = {}
        self.taken_back, self.ends, self.asks_for_last = [], [], []

    def service(self, details):
        return grpc.stream_stream_rpc_method_handler(self.infer)

    async def infer(self, requests, context):
        answers, turn, taking_back = [], asyncio.Lock(), False
        try:
            async for content in requests:
                request = service_pb2.ModelInferRequest.FromString(content)
                names = {key: one.string_param for key, one in request.parameters.items()}
                if "cancel" in names:
                    self.take_back(names["cancel"])
                    taking_back = True
                else:
                    last = request.parameters["triton_enable_empty_final_response"]
                    self.asks_for_last.append(last.bool_param)
                    may_end = self.may_end[names["cancel_id"]] = asyncio.Event()
                    answers.append(
                        asyncio.create_task(self.answer(request.id, may_end, turn, context))
                    )
            await asyncio.gather(*answers)
        except asyncio.CancelledError:
            self.ends.append("cancelled")
            raise
        if not taking_back:
            self.ends.append("closed")

    async def answer(self, request_id, may_end, turn, context):
        once = self.answers_once or self.answers_without
        response = service_pb2.ModelStreamInferResponse()
        response.infer_response.id = request_id
        response.infer_response.model_version = "1"
        if not self.answers_without:
            response.infer_response.outputs.add(name="text_output")
            response.infer_response.raw_output_contents.append(self.text)
        says_nothing = self.says_nothing_at_last
        if not once:
            async with turn:
                await context.write(response.SerializeToString())
            await may_end.wait()
        response.infer_response.parameters["triton_final_response"].bool_param = True
        if says_nothing:
            response.infer_response.ClearField("outputs")
            response.infer_response.ClearField("model_version")
        async with turn:
            await context.write(response.SerializeToString())

    def take_back(self, name):
        self.taken_back.append(name)
        if self.takes_back:
            self.may_end[name].set()


def gate(calls):
    return Gate(calls, Full(), Refusals())


def front_of(channel, calls=None, bodies=None):
    return GrpcFront(channel, gate(calls or for_calls(100)), bodies or for_bodies(1 << 30))


@asynccontextmanager
async def started(front):
    """A front, or what stands for Triton."""
    if isinstance(front, GrpcFront):
        server = KnownMethods(front.handlers())
    else:
        server = grpc.aio.server(handlers=[front])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


@asynccontextmanager
async def world(most_calls=100, room=None, bodies=None):
    """A Triton, and a stream of a client before its front, in which two answers have come: two
    requests are under way."""
    triton = Triton()
    async with (
        started(triton) as channel,
        started(front_of(channel, room or for_calls(most_calls), bodies)) as client,
        asyncio.timeout(20),
    ):
        stream = client.stream_stream(STREAM)()
        for _ in range(2):
            await stream.write(ASKED)
            assert not final(await stream.read())
        yield triton, stream


def final(content):
    response = service_pb2.ModelStreamInferResponse.FromString(content).infer_response
    return response.parameters["triton_final_response"].bool_param


def answer_of(content):
    return service_pb2.ModelStreamInferResponse.FromString(content)


async def until(holds):
    while not holds():
        await asyncio.sleep(0.01)


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


def test_who_stays_gets_its_answers_beside_what_is_refused():
    async def run():
        async with world() as (triton, stream):
            await stream.write(HUGE)
            refused = service_pb2.ModelStreamInferResponse.FromString(await stream.read())
            assert "more elements" in refused.error_message
            await stream.done_writing()
            for may_end in triton.may_end.values():
                may_end.set()
                assert final(await stream.read())
            assert await stream.read() is grpc.aio.EOF
            await until(lambda: triton.ends)
            assert (triton.ends, triton.taken_back) == (["closed"], [])

    asyncio.run(run())


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


def test_a_refusal_says_which_request_it_is_of():
    async def run():
        async with world() as (_, stream):
            await stream.write(message([RawTensor("a", "INT32", [1 << 62], b"")], {}, "mine"))
            refused = service_pb2.ModelStreamInferResponse.FromString(await stream.read())
            assert (refused.infer_response.id, "more elements" in refused.error_message) == (
                "mine",
                True,
            )

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


def test_answers_are_of_their_own_requests_whatever_these_are_called():
    async def run():
        async with world() as (triton, stream):
            await stream.write(message([], {"cancel_id": "order"}))
            assert answer_of(await stream.read()).infer_response.id == ""
            await stream.write(message([], {}, "order"))
            assert answer_of(await stream.read()).infer_response.id == "order"
            triton.may_end["order"].set()
            answer = answer_of(await stream.read())
            assert (answer.infer_response.id, final(answer.SerializeToString())) == ("", True)

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
    bodies = for_bodies(5 * len(ASKED))

    async def run():
        async with world(bodies=bodies) as (triton, stream):
            assert bodies.taken == 0  # they are Triton's
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


@pytest.mark.parametrize("asks", [False, True])
def test_an_empty_last_response_is_for_those_who_ask_for_it(asks):
    """The front itself has Triton send it, to know what is under way."""

    async def run():
        async with world() as (triton, stream):
            triton.says_nothing_at_last = True
            asked = {"triton_enable_empty_final_response": True} if asks else {}
            await stream.write(message([], asked))
            assert not final(await stream.read())
            await stream.done_writing()
            for may_end in triton.may_end.values():
                may_end.set()
            rest = []
            while (content := await stream.read()) is not grpc.aio.EOF:
                rest.append(final(content))
            assert rest == [True] * (3 if asks else 2)
            assert triton.asks_for_last == [True] * 3

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


def test_refusals_and_answers_come_at_the_same_time():
    async def run():
        async with world() as (triton, stream):
            triton.answers_once = True
            for _ in range(200):
                await stream.write(ASKED)
                await stream.write(HUGE)
            responses = [await stream.read() for _ in range(400)]
            assert sum(map(final, responses)) == 200

    asyncio.run(run())


def test_a_response_without_outputs_is_for_the_client_all_the_same():
    """Who asks for outputs that there are none of is answered so."""

    async def run():
        async with world() as (triton, stream):
            triton.answers_without = True
            await stream.write(message([], {}, "mine"))
            answer = service_pb2.ModelStreamInferResponse.FromString(await stream.read())
            assert answer.infer_response.id == "mine"
            assert final(answer.SerializeToString())

    asyncio.run(run())
