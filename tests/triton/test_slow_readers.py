"""Clients that stop reading, and have no room for what comes: others are served as before, memory
stays within what was written, and when they are killed their requests end.

On a server of its own, for such clients may do to Triton what no other test must suffer from.
"""

import statistics
import threading
import time
from pathlib import Path

import psutil
import pytest

from tandem.metrics import FINISHED, GENERATED_TOKENS, KV_USAGE, RUNNING, WAITING
from tandem_client import GrpcClient
from tandem_client.params import GenerationParams
from tandem_client.wire import request_fields
from tests.conftest import steady_server
from tests.triton.conftest import PROMPT
from tests.triton.scrape import settled, waited
from tools.soak.leavers import LEAVERS, KilledLeaver
from tools.soak.watch import MIB

CLIENTS = 6
ROOM = 4096  # bytes for a client that does not read
# Logprobs make 2 KB of every token, so that what Triton and the kernel keep by themselves is full.
ASKED = GenerationParams(max_tokens=1900, temperature=0.0, ignore_eos=True, logprobs=20)
FIELDS = request_fields(PROMPT, ASKED, details=True)
SHORT = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
WRITTEN = 1000 * CLIENTS  # tokens, while none is read
MOST_MIB = 32  # WRITTEN is some 12


@pytest.fixture(scope="module")
def server(tmp_path_factory, served_model):
    folder = tmp_path_factory.mktemp("slow")
    (folder / "tandem").symlink_to(served_model)
    with steady_server("tandem", folder, folder) as server:
        yield server


def latency(server):
    """Seconds of a short request, as a rule."""
    taken = []
    with GrpcClient(server.endpoints.grpc) as client:
        for _ in range(9):
            begun = time.monotonic()
            client.generate(PROMPT, SHORT)
            taken.append(time.monotonic() - begun)
    return statistics.median(taken)


def beside_readers(server, protocol):
    """The latency beside as many who read."""
    kind, url = LEAVERS[protocol], getattr(server.endpoints, protocol)
    clients = [kind(url, "tandem", FIELDS) for _ in range(CLIENTS)]
    for client in clients:
        client.begin()
    threads = [threading.Thread(target=client.read) for client in clients]
    for thread in threads:
        thread.start()
    found = latency(server)
    for client in clients:
        client.leave()
    return found


def stuck(url):
    """Connections for which the kernel has something of Triton that the client does not take."""
    port = int(url.split(":")[1])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sent = [int(row[4].split(":")[0], 16) for row in rows if row[1].endswith(f":{port:04X}")]
    return sum(count > ROOM for count in sent)


def occupied(server):
    """Resident MiB of Triton and of the stub."""
    triton = psutil.Process(server.pid)
    return sum(one.memory_info().rss for one in [triton, *triton.children()]) / MIB


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_clients_that_stop_reading_and_are_killed(server, protocol):
    urls = server.endpoints
    url = getattr(urls, protocol)
    usual = beside_readers(server, protocol)
    begin, memory = settled(urls), occupied(server)
    clients = [KilledLeaver(protocol, url, "tandem", FIELDS, ROOM) for _ in range(CLIENTS)]
    for client in clients:
        client.begin()
    slow = latency(server)
    found = waited(urls, lambda found: grown(begin, found, GENERATED_TOKENS) > WRITTEN)
    assert found[RUNNING,] == CLIENTS
    if protocol == "http":  # (over gRPC the rest waits in Triton itself)
        assert stuck(url) == CLIENTS
    slow = max(slow, latency(server))
    assert slow < 3 * usual + 0.5
    assert occupied(server) - memory < MOST_MIB
    for client in clients:
        client.leave()
    aborted = FINISHED, ("finished_reason", "abort")
    idle = waited(
        urls,
        lambda found: found[RUNNING,] == found[WAITING,] == 0 < grown(begin, found, *aborted),
    )
    assert grown(begin, idle, *aborted) == CLIENTS
    assert {count for name, count in idle.items() if name[0] == KV_USAGE} == {0}
    assert latency(server) < 3 * usual + 0.5


def grown(begin, found, *name):
    """What a counter has counted since."""
    return found.get(name, 0) - begin.get(name, 0)
