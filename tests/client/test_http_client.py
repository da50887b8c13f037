"""The HTTP clients against a transport in this process."""

import asyncio
import json

import httpx2
import pytest

from tandem_client import (
    AsyncHttpClient,
    DeadlineExceeded,
    HttpClient,
    InvalidArgument,
    ServerError,
    Unavailable,
)

FIRST = {"text_output": "hé", "finish_reason": "None", "output_ids": [1], "num_output_tokens": 1}
LAST = {"text_output": "€", "finish_reason": "stop", "output_ids": [2, 3], "num_output_tokens": 2}


def frame(message):
    return f"data: {json.dumps(message, ensure_ascii=False)}\n\n".encode()


class Body(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A response body in pieces that knows whether it was closed."""

    def __init__(self, pieces):
        self.pieces = pieces
        self.closed = False

    def __iter__(self):
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def __aiter__(self):
        for piece in self:
            yield piece

    def close(self):
        self.closed = True

    async def aclose(self):
        self.closed = True


def respond(body, status=200):
    headers = {"Content-Type": "text/event-stream; charset=utf-8"}
    return httpx2.MockTransport(
        lambda request: httpx2.Response(status, headers=headers, stream=body)
    )


def answer(pieces, status=200):
    with HttpClient(transport=respond(Body(pieces), status)) as client:
        return client.generate("x")


def test_frames_may_be_cut_anywhere():
    payload = frame(FIRST) + frame(LAST)
    for size in (1, 3, 50, len(payload)):
        pieces = [payload[at : at + size] for at in range(0, len(payload), size)]
        completion = answer(pieces)
        assert (completion.text, completion.token_ids) == ("hé€", (1, 2, 3))
        assert completion.finish_reason == "stop"


def test_the_request_is_the_contracts():
    seen = []

    def handler(request):
        seen.append((request.url.path, json.loads(request.content)))
        headers = {"Content-Type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, content=frame(LAST))

    with HttpClient(model="m", transport=httpx2.MockTransport(handler)) as client:
        client.generate("x", max_tokens=3, timeout=9, request_id="order 66")
    [(path, body)] = seen
    assert path == "/v2/models/m/generate_stream"
    assert body["stream"] is True
    assert (body["id"], body["return_request_id"]) == ("order 66", True)
    assert json.loads(body["sampling_parameters"]) == {"max_tokens": 3, "timeout": 9}


def test_an_error_before_the_first_token_has_its_status():
    with pytest.raises(InvalidArgument, match=r"^say what$"):
        answer([frame({"error": "say what"})], 400)
    with pytest.raises(Unavailable, match=r"^come back$"):
        answer([b'{"error":"come back"}'], 503)
    with pytest.raises(ServerError, match=r"^<html>oops$"):
        answer([b"<html>oops"], 500)


def test_an_error_after_the_first_token():
    with pytest.raises(ServerError, match=r"^it broke$"):
        answer([frame(FIRST), frame({"error": "it broke"})])


def test_a_stream_that_is_cut_off_is_no_completion():
    with pytest.raises(Unavailable, match="before the answer was complete"):
        answer([frame(FIRST)])
    with pytest.raises(Unavailable, match="no connection"):
        answer([frame(FIRST), httpx2.RemoteProtocolError("peer closed")])


@pytest.mark.parametrize("end", [httpx2.RemoteProtocolError("closed"), httpx2.ReadTimeout("late")])
def test_an_answer_is_complete_whatever_comes_behind_it(end):
    assert answer([frame(FIRST) + frame(LAST), end]).finish_reason == "stop"


def test_silence_past_the_timeout():
    with pytest.raises(DeadlineExceeded):
        answer([httpx2.ReadTimeout("")])


@pytest.mark.parametrize(("timeout", "kind"), [(0.5, DeadlineExceeded), (60, Unavailable)])
def test_a_connection_that_takes_too_long(timeout, kind):
    """Too long for the request, or for a connection."""

    def refuse(request):
        raise httpx2.ConnectTimeout("")

    with HttpClient(transport=httpx2.MockTransport(refuse)) as client, pytest.raises(kind):
        client.generate("x", timeout=timeout)


def test_a_slow_trickle_ends_at_the_deadline_too():
    body = Body([frame(FIRST), frame(LAST)])
    with (
        HttpClient(transport=respond(body)) as client,
        pytest.raises(DeadlineExceeded, match="timeout of 0 s"),
    ):
        client.generate("x", timeout=0)


def test_leaving_early_closes_the_response():
    body = Body([frame(FIRST)] * 3)
    with HttpClient(transport=respond(body)) as client:
        with client.stream("x") as chunks:
            assert next(chunks).text == "hé"
            assert not body.closed
        assert body.closed


def test_asyncio_streams_and_closes_too():
    async def run():
        body = Body([frame(FIRST), frame(LAST)])
        async with AsyncHttpClient(transport=respond(body)) as client:
            assert (await client.generate("x")).text == "hé€"
        body = Body([frame(FIRST)] * 3)
        async with AsyncHttpClient(transport=respond(body)) as client:
            async with client.stream("x") as chunks:
                assert (await anext(chunks)).text == "hé"
            assert body.closed

    asyncio.run(run())
