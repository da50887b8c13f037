"""What a stream is answered, and in which order."""

import asyncio

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.front.streams import (
    ASKED,
    HUGE,
    answer_of,
    final,
    until,
    world,
)
from tests.triton.raw import RawTensor, message


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
