"""The project's own clients, command and demo against the real server."""

import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tandem_client import (
    AsyncGrpcClient,
    AsyncHttpClient,
    DeadlineExceeded,
    GrpcClient,
    HttpClient,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from tandem_client.cli import app
from tests.triton.conftest import PROMPT
from tests.triton.protocol import WAIT

PARAMS = {"max_tokens": 64, "temperature": 0.0, "ignore_eos": True}


def check(completion, text):
    assert completion.text == text
    assert completion.num_tokens == len(completion.token_ids) == len(completion.drafted) == 64
    assert completion.finish_reason == "length"
    assert completion.stats.accepted >= sum(completion.drafted) > 0
    assert completion.stats.mean_acceptance_length > 1
    assert 0 < completion.timing.time_to_first_token <= completion.timing.total


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_blocking_clients(urls, greedy_text, tokenizer, protocol):
    kind = {"grpc": GrpcClient, "http": HttpClient}[protocol]
    with kind(getattr(urls, protocol)) as client:
        assert client.is_ready()
        check(client.generate(PROMPT, PARAMS), greedy_text)
        check(client.generate(tokenizer.encode(PROMPT).ids, PARAMS), greedy_text)
        completion = client.generate(PROMPT, PARAMS, max_tokens=4, logprobs=2)
        assert [len(entry) for entry in completion.logprobs] == [2] * 4
        with pytest.raises(InvalidArgument, match="temperature"):
            client.generate(PROMPT, temperature=-1.0)
    with kind(getattr(urls, protocol), "nobody") as client:
        assert not client.is_ready()
        with pytest.raises(NotFound):
            client.generate(PROMPT)
    with kind(getattr(urls, protocol), details=False) as client:
        assert client.generate(PROMPT, PARAMS).text == greedy_text


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_what_a_request_may_say_beside_its_prompt(urls, greedy_text, protocol):
    kind = {"grpc": GrpcClient, "http": HttpClient}[protocol]
    plain = {"speculative_method": "none", "priority": 3}
    with kind(getattr(urls, protocol)) as client:
        completion = client.generate(PROMPT, PARAMS, request_id="order 66", timeout=WAIT, **plain)
        assert completion.text == greedy_text
        assert completion.stats.drafted == 0
        assert completion.request_id.startswith("order 66-")
        with pytest.raises(InvalidArgument, match="priority"):
            client.generate(PROMPT, priority="high")


def test_a_timeout_holds_on_the_server_too(small):
    """Triton does not notice that a client over HTTP has left the queue, which has one place."""
    with (
        GrpcClient(small.grpc) as grpc,
        HttpClient(small.http) as http,
        grpc.stream(PROMPT, PARAMS, max_tokens=1500, num_draft_tokens=0) as running,
    ):
        next(running)
        with pytest.raises(DeadlineExceeded):
            http.generate(PROMPT, timeout=0.3)
        # The server's clock began later, and it looks between two steps; then the place is free.
        while refused(http):
            time.sleep(0.02)
        assert next(running).finish_reason is None


def refused(client):
    """Whether the queue is full; otherwise the request waits until its time is over."""
    try:
        client.generate(PROMPT, timeout=0.3)
    except DeadlineExceeded:
        return False
    except Unavailable:
        return True
    raise AssertionError("It was answered.")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_asyncio_clients(urls, greedy_text, protocol):
    async def run():
        kind = {"grpc": AsyncGrpcClient, "http": AsyncHttpClient}[protocol]
        async with kind(getattr(urls, protocol)) as client:
            assert await client.is_ready()
            check(await client.generate(PROMPT, PARAMS), greedy_text)

    asyncio.run(run())


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_the_command(urls, greedy_text, protocol):
    server = ["--protocol", protocol, "--url", getattr(urls, protocol)]
    result = CliRunner().invoke(app, ["generate", PROMPT, "--stats", *server])
    assert (result.exit_code, result.stdout) == (0, greedy_text + "\n")
    assert result.stderr.startswith("64 tokens, ")
    assert CliRunner().invoke(app, ["ready", *server]).exit_code == 0
    bad = CliRunner().invoke(app, ["generate", PROMPT, "--max-tokens", "0", *server])
    assert bad.exit_code == 2
    assert "max_tokens" in bad.stderr


def test_the_demo(urls, tokenizer, tmp_path):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    picture = tmp_path / "demo.svg"
    command = [sys.executable, "-m", "tandem_client.demo", "--url", urls.grpc]
    command += ["--tokenizer", str(tmp_path), "--max-tokens", "48"]
    plain = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "«" in plain
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= 100
    assert "tokens/s, median of 5 runs" in plain
    assert re.search(r"the same tokens +yes", plain)
    subprocess.run([*command, "--svg", str(picture)], capture_output=True, check=True)
    assert Path(picture).read_text().startswith("<svg")
