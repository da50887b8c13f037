"""What Triton sees of clients that leave, by one that is none."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tandem.front import grpc_stream
from tandem.front.grpc_front import STREAM, GrpcFront
from tests.triton.raw import RawTensor, message, strings

ASKED = message([RawTensor("text_input", "BYTES", [1], strings(b"a"))], {})
HUGE = message([RawTensor("input_ids", "INT32", [1 << 62], b"")], {})


class Triton(grpc.GenericRpcHandler):
    """Answers a request twice, the second time when it may, or when it is taken back."""

    def __init__(self):
        self.takes_back = True
        self.may_end: dict[str, asyncio.Event] = {}
        self.taken_back, self.ends = [], []

    def service(self, details):
        return grpc.stream_stream_rpc_method_handler(self.infer)

    async def infer(self, requests, context):
        answers, turn = [], asyncio.Lock()
        try:
            async for content in requests:
                request = service_pb2.ModelInferRequest.FromString(content)
                names = {key: one.string_param for key, one in request.parameters.items()}
                if "cancel" in names:
                    self.take_back(names["cancel"])
                else:
                    may_end = self.may_end[names["cancel_id"]] = asyncio.Event()
                    answers.append(asyncio.create_task(answer(may_end, turn, context)))
            await asyncio.gather(*answers)
        except asyncio.CancelledError:
            self.ends.append("cancelled")
            raise
        if answers:
            self.ends.append("closed")

    def take_back(self, name):
        self.taken_back.append(name)
        if self.takes_back:
            self.may_end[name].set()


async def answer(may_end, turn, context):
    response = service_pb2.ModelStreamInferResponse()
    async with turn:
        await context.write(response.SerializeToString())
    await may_end.wait()
    response.infer_response.parameters["triton_final_response"].bool_param = True
    async with turn:
        await context.write(response.SerializeToString())


@asynccontextmanager
async def started(handler):
    server = grpc.aio.server(handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


@asynccontextmanager
async def world():
    """A Triton, and a stream of a client before its front, in which two answers have come: two
    requests are under way."""
    triton = Triton()
    async with (
        started(triton) as channel,
        started(GrpcFront(channel)) as client,
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

    async def run():
        async with world() as (triton, stream):
            triton.takes_back = False
            stream.cancel()
            await until(lambda: triton.ends)
            assert (triton.ends, len(triton.taken_back)) == (["cancelled"], 2)

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
