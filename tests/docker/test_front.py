"""What stands before Triton for clients that are not trusted, before a real one."""

import gzip
import re
import time

import httpx2
import pytest

from tests.docker.files import compose
from tests.triton.scrape import ended, settled, waited
from tools.soak.front import has_nginx, nginx

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(not has_nginx(), reason="needs nginx, of Debian's package nginx-light"),
]
GENERATE = "/v2/models/tandem/generate"
LONG = '{"max_tokens": 1900, "temperature": 0, "ignore_eos": true, "num_draft_tokens": 0}'
ASK = {"text_input": "def main():", "sampling_parameters": '{"max_tokens": 8, "temperature": 0}'}


@pytest.fixture(scope="module")
def running(triton_server):
    with nginx(triton_server.endpoints.http) as one:
        yield one


@pytest.fixture(scope="module")
def front(running):
    """A client of it."""
    with httpx2.Client(base_url=f"http://{running.url}", timeout=60) as client:
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


def test_its_log_says_what_clients_were_answered(front, running):
    bad = ASK | {"sampling_parameters": "{"}
    assert front.post(GENERATE, json=ASK).status_code == 200
    assert front.post(GENERATE, json=bad).status_code == 400
    assert front.get("/v2/logging").status_code == 403
    asked = ASK | {"sampling_parameters": LONG}
    with pytest.raises(httpx2.ReadTimeout):
        front.post(GENERATE, json=asked, timeout=0.2)
    with front.stream("POST", f"{GENERATE}_stream", json=asked | {"stream": True}) as answer:
        next(answer.iter_raw())
    deadline = time.monotonic() + 30
    while (said := statuses(running.log)[-5:]) != [200, 400, 403, 499, 499]:
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def statuses(log):
    return [int(line.split('" ')[1].split()[0]) for line in log.read_text().splitlines()]


def answered(server):
    """Requests that Triton has had answered, as it counts them."""
    text = httpx2.get(f"http://{server.endpoints.metrics}/metrics").text
    (found,) = re.findall(r'nv_inference_request_success{model="tandem",version="1"} (\d+)', text)
    return int(found)


DEEP = '{"text_input": %s, "more": 1}'
BODIES = {
    "deep": (DEEP % ("[" * 270_000 + "]" * 270_000), 413),
    "deep where nothing is known": ('{"x": %s}' % ("[" * 270_000 + "]" * 270_000), 413),
    "as deep as it may be": (DEEP % ("[" * 262_000 + "]" * 262_000), 400),
    "without an end": ("[" * 524_000, 500),
}


@pytest.mark.parametrize("body", BODIES)
def test_no_body_ends_triton(front, triton_server, body):
    text, status = BODIES[body]
    assert front.post(GENERATE, content=text).status_code == status
    packed = {"Content-Encoding": "gzip"}
    found = front.post(GENERATE, content=gzip.compress(text.encode()), headers=packed)
    assert found.status_code == 415
    assert triton_server.exit_code() is None
    assert front.post(GENERATE, json=ASK).status_code == 200


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


def test_compose_puts_it_before_triton_where_asked():
    service, of_grpc = compose()["front"], compose()["grpc-front"]
    assert service["profiles"] == of_grpc["profiles"] == ["front"]
    assert of_grpc["ports"] == ["8081:8081"]
    assert service["volumes"] == ["./front.conf:/etc/nginx/conf.d/default.conf:ro"]
    assert service["ports"] == ["8080:8080"]
