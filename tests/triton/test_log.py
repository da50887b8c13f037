"""What the log says of requests: their names, and nothing of what they are about."""

import re

import pytest

from tests.triton.protocol import Refused, joined, post, responses, sampling

SECRET = "def wrap_the_zebra(crossing):"
ASK = {"text_input": SECRET, "sampling_parameters": sampling(max_tokens=4)}
GENERATED = re.compile(r"request-[0-9a-f]{16}")


@pytest.fixture
def written(small_server):
    """Lines of the model and its engine since the test began."""
    before = len(small_server.log_path.read_text(errors="replace"))

    def added():
        return small_server.log_path.read_text(errors="replace")[before:]

    def read():
        return [line for line in added().splitlines() if line.startswith("tandem: ")]

    yield read
    assert "zebra" not in added()


def test_an_id_over_http_is_in_every_line(small, written):
    body = ASK | {"id": "order 66", "return_request_id": True}
    answer = post(small.http, body).json()
    assert answer["id"] == "order 66"
    assert re.fullmatch(r"order 66-[0-9a-f]{16}", answer["request_id"])
    lines = [line.removeprefix("tandem: ") for line in written()]
    assert lines == [
        f"{answer['request_id']} has arrived.",
        f"{answer['request_id']} has ended: length.",
    ]


def test_an_id_over_grpc_is_in_every_line(small, written):
    list(responses(small.grpc, ASK, request_id="order 67"))
    assert written()
    assert all(line.startswith("tandem: order 67-") for line in written())


def test_a_request_without_an_id_is_told_the_one_it_gets(small, written):
    [name] = joined(responses(small.grpc, ASK | {"return_request_id": True}), "request_id")
    assert GENERATED.fullmatch(name.decode())
    assert written()
    assert all(name.decode() in line for line in written())


def test_refused_and_cancelled_requests_are_named(small, written):
    bad = ASK | {"sampling_parameters": '{"max_tokens": 0}'}
    with pytest.raises(Refused):
        list(responses(small.grpc, bad, request_id="bad"))
    long = {"stream": True, "sampling_parameters": sampling(max_tokens=1000)}
    answer = responses(small.grpc, ASK | long, request_id="gone")
    next(answer)
    answer.close()
    list(responses(small.grpc, ASK, request_id="next"))
    said = " ".join(written())
    assert "bad is refused: The sampling parameter 'max_tokens'" in said
    assert re.search(r"gone-[0-9a-f]{16} is cancelled", said)
    assert re.search(r"gone-[0-9a-f]{16} has ended: abort", said)
    assert all(re.match(r"tandem: (bad|gone|next)[ -]", line) for line in written())


@pytest.mark.parametrize("name", [b"two\\nlines", b"\xff\xfe", b"x" * 100_000], ids=len)
def test_odd_ids_keep_to_one_line(small, written, name):
    body = b'{"text_input": "zebra", "max_tokens": 2, "id": "' + name + b'"}'
    response = post(small.http, body)
    assert response.status_code == (400 if b"\xff" in name else 200), response.text
    assert all(len(line) < 300 for line in written())
    assert post(small.http, ASK).status_code == 200
