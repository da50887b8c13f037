"""`tandem generate`: an engine without a server."""

import pytest
from typer.testing import CliRunner, Result

from tandem.cli import app
from tandem.errors import InvalidRequestError
from tests.conftest import MODEL_REPOSITORY

FOLDER = MODEL_REPOSITORY / "tandem" / "1"
PROMPT = "def main():"
TEXT = ["--max-tokens", "8", "--set", "dtype=float32", "--set", "adaptive_speculation=false"]


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    command = ["generate", *arguments, "--model", str(FOLDER / "target")]
    return CliRunner().invoke(app, command, input=stdin)


def test_what_drafts_is_only_quicker_and_standard_input_is_a_prompt() -> None:
    plain = run(PROMPT, "-", *TEXT, stdin="import ")
    assert plain.exit_code == 0
    assert plain.stdout.startswith(PROMPT)
    assert "\nimport " in plain.stdout
    assert plain.stderr.count("8 tokens, ") == 2
    assert "drafted" not in plain.stderr
    drafted = run(PROMPT, "import ", *TEXT, "--draft-model", str(FOLDER / "draft"))
    assert drafted.stdout == plain.stdout
    assert drafted.stderr.count(" tokens a round") == 2


def test_text_that_is_none_is_refused_before_models_are_loaded() -> None:
    refused = run("a", "-", stdin=b"a\xff")
    with pytest.raises(InvalidRequestError, match=r"Prompt 2 is no Unicode text.* character 2"):
        raise refused.exception or AssertionError
    assert refused.stdout == ""
