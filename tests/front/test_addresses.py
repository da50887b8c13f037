"""Where a front listens."""

import socket

import grpc
import pytest

from tandem.front.door import Door
from tandem.front.grpc_front import SERVICE
from tandem.serving import Endpoints
from tandem.serving.front_process import front_before
from tandem.triton_http import ask


def has(address):
    """Whether this machine has it."""
    try:
        socket.create_server((address, 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["localhost", "::1", "::", "0.0.0.0"])
def test_every_protocol_is_where_it_is_said_to_be(host):
    if ":" in host and not has("::1"):
        pytest.skip("there is no IPv6 here")
    nobody = Endpoints(*["127.0.0.1:1"] * 3)
    with front_before(nobody, Door(host=host)) as front:
        found = {front.endpoints}
        if host == "::":
            found.add(Endpoints(*[f"[::1]:{one.split(':')[-1]}" for one in front.endpoints]))
        for endpoints in found:
            assert ask(endpoints.http, "/v2/health/ready").status == 503
            assert ask(endpoints.metrics, "/metrics").status == 503
            with grpc.insecure_channel(endpoints.grpc) as channel:
                with pytest.raises(grpc.RpcError) as raised:
                    channel.unary_unary(f"{SERVICE}RepositoryIndex")(b"", timeout=20)
                assert raised.value.code() == grpc.StatusCode.PERMISSION_DENIED
