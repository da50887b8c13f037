"""The command: what it prints, and its exit codes."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tandem_client.cli import app


@pytest.fixture
def run(service):
    def invoke(*arguments, url=service.url, stdin=None):
        return CliRunner().invoke(app, [*arguments, "--url", url], input=stdin)

    return invoke


def test_generate_prints_the_text(run):
    result = run("generate", "hé")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "hé!\n", "")


def test_a_dash_reads_the_prompt_from_standard_input(run):
    assert run("generate", "-", stdin="in").stdout == "in!\n"


def test_standard_input_that_is_no_text_is_one_sentence(run):
    result = run("generate", "-", stdin=b"a\xff")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("tandem-client: The prompt has '\\udcff' at character 2")


def test_json_and_stats(run):
    result = run("generate", "a", "--json", "--stats")
    answer = json.loads(result.stdout)
    assert (answer["text"], answer["token_ids"]) == ("a!", [1, 2, 1, 2])
    assert set(answer["timing"]) == {"time_to_first_token", "total", "tokens_per_second"}
    assert result.stderr.startswith("4 tokens, ")


def test_stats_come_behind_the_text_in_a_pipe_too(service):
    # -I: without variables such as PYTHONUNBUFFERED, which would hide it
    command = ["-I", "-m", "tandem_client.cli", "generate", "a", "--stats", "--url", service.url]
    run = subprocess.run(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert run.stdout.startswith("a!\n4 tokens, ")


def test_what_a_request_may_say_beside_its_prompt(run, service):
    options = ["--priority", "-1", "--speculative-method", "none", "--num-draft-tokens", "0"]
    more = ["--timeout", "9", "--request-id", "order 66"]
    result = run("generate", "a", "--stats", *options, *more)
    assert result.stderr.startswith("order 66-7: 4 tokens, ")
    [request] = service.requests
    sent = dict(zip([one.name for one in request.inputs], request.raw_input_contents, strict=True))
    assert json.loads(sent["sampling_parameters"][4:]) == {
        "max_tokens": 64,
        "temperature": 0.0,
        "priority": -1,
        "speculative_method": "none",
        "timeout": 9.0,
    }
    assert sent["num_draft_tokens"] == bytes(4)
    assert request.id == "order 66"


UNREACHABLE = "no connection to the server (Connection refused): start it, or give its own address"


@pytest.mark.parametrize(
    ("prompt", "url", "code", "sentence"),
    [
        ("bad", None, 2, "tandem-client: say what\n"),
        ("cut", None, 3, "tandem-client: the stream ended before the answer was complete\n"),
        ("x", "localhost:1", 3, f"tandem-client: {UNREACHABLE}\n"),
    ],
)
def test_an_error_is_one_sentence_and_an_exit_code(run, service, prompt, url, code, sentence):
    result = run("generate", prompt, url=url or service.url)
    assert (result.exit_code, result.stderr) == (code, sentence)


def test_an_id_is_shown_as_it_is(run):
    assert "[/a]-7" in run("generate", "x", "--request-id", "[/a]", "--stats").stderr


@pytest.mark.parametrize("command", [["generate", "x"], ["ready"]])
def test_an_address_that_is_none_is_one_sentence(run, command):
    result = run(*command, "--protocol", "http", url="localhost:abc")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "'localhost:abc' is no HOST:PORT" in result.stderr


def test_ready(run):
    result = run("ready")
    assert (result.exit_code, result.stdout) == (0, "tandem is ready\n")
    result = run("ready", "--model", "other")
    assert (result.exit_code, result.stdout) == (3, "other is not ready\n")
