"""The project's own clients, command and demo against the real server."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tandem_client import (
    AsyncGrpcClient,
    AsyncHttpClient,
    GrpcClient,
    HttpClient,
    InvalidArgument,
    NotFound,
)
from tandem_client.cli import app
from tests.triton.conftest import PROMPT

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
    assert "speedup" in plain
    subprocess.run([*command, "--svg", str(picture)], capture_output=True, check=True)
    assert Path(picture).read_text().startswith("<svg")
