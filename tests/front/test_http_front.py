"""What stands before Triton's HTTP, before a real one."""

import gzip
import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx2
import numpy as np
import pytest
from tritonclient import http

from tandem.front import MOST_BYTES
from tandem.front.door import Door
from tandem.serving import ServerOptions, TritonServer
from tandem.serving.front_process import front_before
from tests.serving.models import NOT_DECOUPLED, WHOLE, write_model
from tests.triton.scrape import ended, settled, waited

pytestmark = pytest.mark.triton
GENERATE = "/v2/models/tandem/generate"
LONG = '{"max_tokens": 1900, "temperature": 0, "ignore_eos": true, "num_draft_tokens": 0}'
ASK = {"text_input": "def main():", "sampling_parameters": '{"max_tokens": 8, "temperature": 0}'}


@pytest.fixture(scope="module")
def running(triton_server):
    with front_before(triton_server.endpoints) as one:
        yield one


@pytest.fixture(scope="module")
def front(running):
    """A client of it."""
    with httpx2.Client(base_url=f"http://{running.endpoints.http}", timeout=60) as client:
        yield client


def test_it_answers_as_triton_does(front, triton_server):
    straight = httpx2.post(f"http://{triton_server.endpoints.http}{GENERATE}", json=ASK, timeout=60)
    behind = front.post(GENERATE, json=ASK)
    assert (behind.status_code, behind.json()) == (200, straight.json())
    assert front.get("/v2/models/tandem/ready").status_code == 200


def test_tokens_come_one_by_one(front):
    short = (
        '{"max_tokens": 24, "ignore_eos": true, "num_draft_tokens": 0}'  # less than a buffer holds
    )
    asked = ASK | {"stream": True, "sampling_parameters": short}
    with front.stream("POST", f"{GENERATE}_stream", json=asked) as answer:
        pieces = list(answer.iter_raw())
    assert len(b"".join(pieces)) < 4096
    assert len(pieces) > 4


@pytest.mark.parametrize("path", [GENERATE, GENERATE + "_stream"])
def test_who_leaves_before_the_first_answer_has_left_for_the_model(front, triton_server, path):
    urls = triton_server.endpoints
    before = settled(urls)
    for _ in range(3):
        with pytest.raises(httpx2.ReadTimeout):
            front.post(path, json=ASK | {"sampling_parameters": LONG}, timeout=0.2)
    found = waited(urls, lambda found: ended(found, "abort") == ended(before, "abort") + 3)
    assert ended(found, "abort") == ended(before, "abort") + 3
    assert ended(found, "length") == ended(before, "length")


def test_nothing_is_said_of_who_stays(front, triton_server):
    before = answered(triton_server)
    assert front.post(GENERATE, json=ASK).status_code == 200
    with front.stream("POST", f"{GENERATE}_stream", json=ASK | {"stream": True}) as answer:
        assert b"".join(answer.iter_raw()).startswith(b"data: ")
    time.sleep(0.5)  # for what would come behind
    assert answered(triton_server) == before + 2


def answered(server):
    """Requests that Triton has had answered, as it counts them."""
    text = httpx2.get(f"http://{server.endpoints.metrics}/metrics").text
    (found,) = re.findall(r'nv_inference_request_success{model="tandem",version="1"} (\d+)', text)
    return int(found)


DEEP = '{"text_input": %s, "more": 1}'
BODIES = {
    "deep": DEEP % ("[" * 200_000 + "]" * 200_000),
    "deep where nothing is known": '{"x": %s}' % ("[" * 300_000 + "]" * 300_000),
    "without an end": "[" * 390_000,
    "objects": '{"a":' * 390_000,
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_no_body_ends_triton(front, triton_server, body, packed):
    text = BODIES[body].encode()
    headers = {"Content-Encoding": "gzip"} if packed else {}
    found = front.post(GENERATE, content=gzip.compress(text) if packed else text, headers=headers)
    assert (found.status_code, "JSON" in found.json()["error"]) == (400, True)
    assert triton_server.exit_code() is None
    assert front.post(GENERATE, json=ASK).status_code == 200


@pytest.mark.parametrize("way", [GENERATE, GENERATE + "_stream"])
@pytest.mark.parametrize(
    ("wrong", "wanted"),
    [
        ({"text_input": 5}, "string"),
        ({"text_input": None}, "string"),
        ({"sampling_parameters": {"max_tokens": 8}}, "string"),
        ({"stream": "yes"}, "boolean"),
        ({"input_ids": ["a"]}, "signed-integer"),
        ({"parameters": 5}, "object"),
        ({"id": 5}, "string"),
    ],
    ids=str,
)
def test_a_value_of_another_type_is_the_clients_mistake(front, way, wrong, wanted):
    found = front.post(way, json=ASK | wrong)
    assert found.status_code == 400
    (name,) = wrong
    assert f"value of '{name}' is no {wanted}: send one" in found.json()["error"]


def test_what_is_compressed_is_read(front):
    text = gzip.compress(json.dumps(ASK).encode())
    found = front.post(GENERATE, content=text, headers={"Content-Encoding": "gzip"})
    assert found.json() == front.post(GENERATE, json=ASK).json()


@pytest.mark.parametrize("packed", [False, True])
def test_a_body_that_is_too_large_is_refused(front, packed):
    text = b" " * (1 << 29 if packed else MOST_BYTES + 1)
    headers = {"Content-Encoding": "gzip"} if packed else {}
    begun = time.monotonic()
    found = front.post(
        GENERATE, content=gzip.compress(text, 1) if packed else text, headers=headers
    )
    assert (found.status_code, "is of more than" in found.json()["error"]) == (413, True)
    assert time.monotonic() - begun < 20
    assert front.post(GENERATE, json=ASK).status_code == 200


def test_what_is_packed_otherwise_is_refused(front):
    for how, said in (("gzip", "not packed by gzip"), ("br", "packed by 'br'")):
        found = front.post(GENERATE, json=ASK, headers={"Content-Encoding": how})
        assert (found.status_code, said in found.json()["error"]) == (400, True)


@pytest.mark.parametrize("said", ["-1", "1e3", "99999", "9" * 5000, "²", "٢"])
def test_a_wrong_header_of_binary_data_is_refused(front, said):
    headers = {"Inference-Header-Content-Length": said.encode()}
    found = front.post("/v2/models/tandem/infer", content=b"{}", headers=headers)
    assert (found.status_code, "bytes of the body" in found.json()["error"]) == (400, True)


def test_infer_is_passed_on_or_refused(front):
    """Triton itself has none of it for such a model."""
    tensor = {"name": "input_ids", "datatype": "INT32", "shape": [1], "data": [1]}
    said = {}
    for shape in ([1], [1 << 62]):
        asked = {"inputs": [tensor | {"shape": shape}]}
        said[shape[0]] = front.post("/v2/models/tandem/infer", json=asked).json()["error"]
    assert "decoupled" in said[1] and "more elements" in said[1 << 62]


def test_metrics_are_passed_on(running):
    url = f"http://{running.endpoints.metrics}"
    assert httpx2.get(f"http://{running.endpoints.http}/v2/repository/index").status_code == 403
    found = httpx2.get(f"{url}/metrics")
    refused = re.search(r'tandem_front_refusal_total{reason="not_let_in"} (.*)', found.text)
    assert float(refused[1]) >= 1
    assert "_created" not in found.text
    assert found.status_code == 200 and "tandem_engine_up{" in found.text
    assert httpx2.get(f"{url}/else").status_code == 403
    assert httpx2.post(f"{url}/metrics").status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/index",
        "/v2/repository/models/tandem/unload",
        "/v2/models/../repository/models/tandem/unload",
        "/v2/models/tandem/%2e%2e/%2e%2e/repository/models/tandem/unload",
        "/v2/systemsharedmemory/region/a/register",
        "/v2/models/tandem/trace/setting",
        "/v2/logging",
        "/metrics",
    ],
)
def test_nothing_but_models_is_reached(front, path):
    assert front.post(path, json={}).status_code == 403
    assert front.get("/v2/models/tandem/ready").status_code == 200


def test_bodies_that_do_not_come_keep_nobody_out(triton_server):
    door = Door(most_calls=2)
    with front_before(triton_server.endpoints, door) as front, ExitStack() as stack:
        host, port = front.endpoints.http.split(":")
        for _ in range(8):
            late = stack.enter_context(socket.create_connection((host, int(port))))
            late.sendall(f"POST {GENERATE} HTTP/1.1\r\nContent-Length: 10\r\n\r\n{{".encode())
        url = f"http://{front.endpoints.http}"
        assert httpx2.post(url + GENERATE, json=ASK, timeout=60).status_code == 200


def test_more_requests_than_it_may_take_are_refused(triton_server):
    with front_before(triton_server.endpoints, Door(most_calls=1)) as front:
        url = f"http://{front.endpoints.http}"
        long = ASK | {"stream": True, "sampling_parameters": LONG}
        with httpx2.stream("POST", f"{url}{GENERATE}_stream", json=long, timeout=60) as answer:
            pieces = answer.iter_raw()  # without a name it would be closed, and the answer with it
            next(pieces)
            refused = httpx2.post(url + GENERATE, json=ASK)
            assert (refused.status_code, "under way" in refused.json()["error"]) == (503, True)
            assert httpx2.get(f"{url}/v2/health/ready").status_code == 200
        deadline = time.monotonic() + 30
        while httpx2.post(url + GENERATE, json=ASK, timeout=60).status_code != 200:
            assert time.monotonic() < deadline


def test_it_ends_soon_and_what_runs_is_taken_back(triton_server):
    """As many as take longer than what is on its way may, on any machine."""
    urls, count = triton_server.endpoints, 32
    before = settled(urls)
    with front_before(urls) as front, ThreadPoolExecutor(count) as pool:
        url = f"http://{front.endpoints.http}{GENERATE}"
        asked = ASK | {"sampling_parameters": LONG}
        answers = [pool.submit(httpx2.post, url, json=asked, timeout=60) for _ in range(count)]
        waited(urls, lambda found: found["tandem_num_requests_running",] == count)
        begun = time.monotonic()
        front.stop()
        assert time.monotonic() - begun < 8
        for answer in answers:
            assert answer.exception() is not None or answer.result().status_code == 503
    found = waited(urls, lambda found: ended(found, "abort") == ended(before, "abort") + count)
    assert ended(found, "abort") == ended(before, "abort") + count


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A server of a model that is not decoupled, and its front."""
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "whole", WHOLE, NOT_DECOUPLED)
    options = ServerOptions(folder, ("whole",))
    with TritonServer(options) as server, front_before(server.endpoints) as front:
        yield server, front


def test_large_answers_come_whole(whole):
    server, front = whole
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["50000"]}
    path = "/v2/models/whole/infer"
    straight, behind = (
        httpx2.post(f"http://{one.endpoints.http}{path}", json={"inputs": [tensor]}, timeout=60)
        for one in (server, front)
    )
    assert (behind.status_code, behind.json()) == (200, straight.json())
    assert len(behind.json()["outputs"][0]["data"]) == 50_000


def test_tritons_own_clients_get_what_they_ask_for(whole):
    _, front = whole
    text = http.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"2000"], dtype=object))
    for packed in (None, "gzip", "deflate"):
        with http.InferenceServerClient(front.endpoints.http) as client:
            found = client.infer("whole", [text], request_compression_algorithm=packed)
            assert client.get_inference_statistics("whole")["model_stats"]
        assert found.as_numpy("text_output").shape == (2000,)


def test_what_a_text_may_not_be_asked_for_is_refused(whole):
    """Triton 2.51 would end by it."""
    server, front = whole
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["1"]}
    asked = {"name": "text_output", "parameters": {"classification": 1}}
    url = f"http://{front.endpoints.http}/v2/models/whole/infer"
    found = httpx2.post(url, json={"inputs": [tensor], "outputs": [asked]})
    assert (found.status_code, "classification" in found.json()["error"]) == (400, True)
    assert server.exit_code() is None
