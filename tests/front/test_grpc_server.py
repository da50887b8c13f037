"""A server that no name of a method ends."""

import asyncio
import threading

import grpc
import pytest
from grpc.aio import _server

from tandem.front import run
from tandem.front.door import Door
from tandem.front.grpc_server import KnownMethods
from tandem.serving import Endpoints, ServingError
from tandem.serving.ports import FREE, choose_ports

NO_TEXT = b"/\xff\xfe"


async def echo(content, context):
    await asyncio.sleep(0.2)
    return content


def code_of(address, method):
    """What a call is answered."""
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(method)(b"a", timeout=5)
        except grpc.RpcError as error:
            return error.code()


@pytest.mark.parametrize("method", [NO_TEXT, "/a.B/Other", ""])
def test_a_method_that_is_not_known_waits_and_nobody_beside_it_notices(method):
    async def calls():
        server = KnownMethods({"/a.B/Echo": grpc.unary_unary_rpc_method_handler(echo)})
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with (
            asyncio.timeout(20),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as other,
        ):
            beside = asyncio.create_task(_value(channel.unary_unary("/a.B/Echo")(b"a")))
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await other.unary_unary(method)(b"", timeout=0.5)
            assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            assert await beside == b"a"
            assert await channel.unary_unary("/a.B/Echo")(b"b") == b"b"
        await server.stop(None)

    asyncio.run(calls())


async def _value(call):
    return await call


def test_a_front_whose_server_has_ended_ends(monkeypatch):
    """As gRPC's own does by such a name."""

    class Ordinary(_server.Server):
        def __init__(self, handlers, options):
            super().__init__(None, (), None, options, None, None)

    monkeypatch.setattr(run, "KnownMethods", Ordinary)
    ports = choose_ports("127.0.0.1", FREE)
    address = f"127.0.0.1:{ports.grpc}"
    asking = threading.Thread(target=code_of, args=(address, NO_TEXT))

    async def serve():
        asyncio.get_running_loop().call_later(0.5, asking.start)
        await run.serve(Endpoints("", "127.0.0.1:1", ""), Door(ports=ports))

    with pytest.raises(ServingError, match="gRPC's server has ended"):
        asyncio.run(asyncio.wait_for(serve(), 20))
    asking.join()
