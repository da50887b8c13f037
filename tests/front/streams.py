"""A client's stream before a front, and what stands for Triton behind it."""

import asyncio
from contextlib import asynccontextmanager

import grpc
from tritonclient.grpc import service_pb2

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
        self.hears = asyncio.Event()
        self.hears.set()
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
                if not taking_back:
                    await self.hears.wait()
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
    return GrpcFront(channel, gate(calls or for_calls(100)), bodies or for_bodies(0, 1 << 30))


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
