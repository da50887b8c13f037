"""A model that is full is not asked."""

import asyncio
import re

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tandem.errors import NO_ROOM
from tandem.front import gate
from tandem.front.gate import Full, FullError, Gate, Model, Refusals
from tandem.front.grpc_front import STREAM, GrpcFront
from tandem.front.room import NoRoomError, for_calls
from tests.front.test_grpc_stream import started
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
    one.leave(None, SAID)  # of models that differ: it is not known which was full
    one.enter(OTHER, takes_back=False)


def test_refusals_are_there_before_the_first_and_counted():
    refusals = Refusals()
    assert b'tandem_front_refusal_total{reason="queue_full"} 0.0' in refusals.shown()
    refusals.count(FullError.reason)
    assert b'tandem_front_refusal_total{reason="queue_full"} 1.0' in refusals.shown()


class FullModel(grpc.GenericRpcHandler):
    """Says so."""

    asked = 0

    def service(self, details):
        return grpc.stream_stream_rpc_method_handler(self.infer)

    async def infer(self, requests, context):
        async for _ in requests:
            self.asked += 1
            answer = service_pb2.ModelStreamInferResponse(error_message=SAID)
            await context.write(answer.SerializeToString())


def test_a_stream_is_told_without_asking_triton():
    ask = message([RawTensor("text_input", "BYTES", [1], strings(b"a"))], {})

    async def run():
        model, refusals = FullModel(), Refusals()
        async with started(model) as channel, asyncio.timeout(20):
            one = Gate(for_calls(9), Full(), refusals)
            async with started(GrpcFront(channel, one)) as client:
                for _ in range(3):
                    stream = client.stream_stream(STREAM)()
                    await stream.write(ask)
                    await stream.done_writing()
                    answer = service_pb2.ModelStreamInferResponse.FromString(await stream.read())
                    assert answer.error_message == SAID
        assert model.asked == 1
        assert b'reason="queue_full"} 2.0' in refusals.shown()

    asyncio.run(run())


def test_what_models_say_is_known_as_such():
    assert NO_ROOM.fullmatch(SAID)
    assert NO_ROOM.fullmatch(
        "64 requests are waiting, the most that max_queue_size allows: try again later."
    )
