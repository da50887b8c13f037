"""A model that is full is not asked."""

import asyncio
import re
from contextlib import asynccontextmanager

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tandem.config import EngineConfig
from tandem.errors import queue_full
from tandem.front import MOST_CALLS, gate
from tandem.front.gate import Full, FullError, Gate, Model, Refusals
from tandem.front.grpc_front import ONE as ONCE
from tandem.front.grpc_front import STREAM, GrpcFront
from tandem.front.room import COPIES, HELD_BYTES, NoRoomError, for_bodies, for_calls
from tests.front.streams import started
from tests.triton.raw import RawTensor, message, strings

SAID = "66 requests are here, as many as max_num_seqs and max_queue_size allow: try again later."
ONE, OTHER = Model("one", ""), Model("other", "")


class Clock:
    """A time that is set."""

    def __init__(self):
        self.at = 5.0

    def __call__(self):
        return self.at


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def full(clock):
    full = Full(clock)
    full.ended(ONE, SAID)
    return full


def test_what_a_full_model_says_is_said_for_it(full, clock):
    clock.at += gate.FULL_S * 0.9
    with pytest.raises(FullError, match=f"^{re.escape(SAID)}$"):
        full.check(ONE)
    full.check(OTHER)


def test_it_is_asked_again_after_a_while(full, clock):
    clock.at += gate.FULL_S * 1.1
    full.check(ONE)


@pytest.mark.parametrize("error", ["", "The request was lost.", f"'{SAID}' is unknown: leave it."])
def test_it_is_asked_again_where_one_of_its_requests_has_ended(full, error):
    full.ended(OTHER, error)  # which says nothing of this
    with pytest.raises(FullError):
        full.check(ONE)
    full.ended(ONE, error)
    full.check(ONE)


def test_what_takes_back_comes_in(full):
    one = Gate(for_calls(2), full, Refusals())
    one.enter(ONE, takes_back=True)
    with pytest.raises(FullError):
        one.enter(ONE, takes_back=False)
    one.enter(OTHER, takes_back=False)
    with pytest.raises(NoRoomError, match="2 requests are under way"):
        one.enter(OTHER, takes_back=False)  # what was refused took nothing
    for _ in range(2):  # as many more
        one.enter(OTHER, takes_back=True)
    with pytest.raises(NoRoomError, match="4 requests are under way"):
        one.enter(OTHER, takes_back=True)
    one.leave(None, SAID, count=3)  # of models that differ: it is not known which was full
    one.enter(OTHER, takes_back=False)


def test_what_only_waits_may_be_let_in_before_a_request_has_ended(full):
    full.ended(OTHER, str(queue_full(8)))
    full.check(OTHER)


def test_there_is_room_for_one_request_at_least():
    for_bodies(1 << 30).take(COPIES << 30)
    with pytest.raises(NoRoomError, match="bytes of requests"):
        for_bodies(1).take(HELD_BYTES + 1)


def test_refusals_are_there_before_the_first_and_counted():
    refusals = Refusals()
    assert b'tandem_front_refusal_total{reason="queue_full"} 0.0' in refusals.shown()
    refusals.count(FullError.reason)
    assert b'tandem_front_refusal_total{reason="queue_full"} 1.0' in refusals.shown()


class FullModel(grpc.GenericRpcHandler):
    """Says so, to a stream and to one request."""

    def __init__(self):
        self.asked = []

    def service(self, details):
        if details.method == STREAM:
            return grpc.stream_stream_rpc_method_handler(self.infer)
        return grpc.unary_unary_rpc_method_handler(self.infer_once)

    async def infer(self, requests, context):
        contents = [one async for one in requests]
        for content in contents:
            self.asked.append(service_pb2.ModelInferRequest.FromString(content).model_name)
            answer = service_pb2.ModelStreamInferResponse(error_message=SAID)
            await context.write(answer.SerializeToString())

    async def infer_once(self, content, context):
        self.asked.append(service_pb2.ModelInferRequest.FromString(content).model_name)
        await context.abort(grpc.StatusCode.UNAVAILABLE, SAID)


def ask(model="one"):
    request = service_pb2.ModelInferRequest.FromString(
        message([RawTensor("text_input", "BYTES", [1], strings(b"a"))], {})
    )
    request.model_name = model
    return request.SerializeToString()


@asynccontextmanager
async def world(bodies=None):
    """A full model, how refusals are counted, and a client before its front."""
    model, refusals = FullModel(), Refusals()
    async with started(model) as channel, asyncio.timeout(20):
        front = GrpcFront(
            channel, Gate(for_calls(9), Full(), refusals), bodies or for_bodies(0, 1 << 20)
        )
        async with started(front) as client:
            yield model, refusals, client


async def told(client, *models):
    """What a stream of requests is answered."""
    stream = client.stream_stream(STREAM)()
    for one in models:
        await stream.write(ask(one))
    await stream.done_writing()
    answers = [await stream.read() for _ in models]
    return [service_pb2.ModelStreamInferResponse.FromString(one).error_message for one in answers]


def test_a_stream_is_told_without_asking_triton():
    async def run():
        async with world() as (model, refusals, client):
            for _ in range(3):
                assert await told(client, "one") == [SAID]
            assert model.asked == ["one"]
            assert b'reason="queue_full"} 2.0' in refusals.shown()

    asyncio.run(run())


def test_a_request_is_told_without_asking_triton():
    async def run():
        async with world() as (model, _, client):
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await client.unary_unary(ONCE)(ask())
                told = (error.value.code(), error.value.details())
                assert told == (grpc.StatusCode.UNAVAILABLE, SAID)
            assert model.asked == ["one"]

    asyncio.run(run())


def test_a_request_that_there_is_no_room_for_is_told_so():
    bodies = for_bodies(0, 2 * len(ask()) - 1)

    async def run():
        async with world(bodies) as (model, refusals, client):
            with pytest.raises(grpc.aio.AioRpcError, match="bytes of requests") as error:
                await client.unary_unary(ONCE)(ask())
            assert error.value.code() == grpc.StatusCode.UNAVAILABLE
            assert (model.asked, bodies.taken) == ([], 0)
            assert b'reason="no_room"} 1.0' in refusals.shown()

    asyncio.run(run())


def test_a_stream_to_two_models_does_not_say_which_is_full():
    async def run():
        async with world() as (model, _, client):
            assert await told(client, "one", "other") == [SAID, SAID]
            assert await told(client, "other") == [SAID]
            assert model.asked == ["one", "other", "other"]

    asyncio.run(run())


def test_the_front_lets_in_what_a_model_has_room_for():
    fields = EngineConfig.model_fields
    assert fields["max_num_seqs"].default + fields["max_queue_size"].default < MOST_CALLS
