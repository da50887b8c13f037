import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tandem.cli import app
from tandem.serving import ServingError
from tandem.serving.model_config import read_model
from tandem.serving.overrides import overridden
from tests.conftest import MODEL_REPOSITORY
from tests.serving.models import ECHO, write_model

CONFIG = """
backend: "python"
parameters { key: "model" value { string_value: "target" } }
parameters { key: "dtype" value { string_value: "auto" } }
"""


def test_parameters_are_replaced_and_folders_still_found(tmp_path: Path) -> None:
    write_model(tmp_path, "echo", ECHO, CONFIG)
    (tmp_path / "echo" / "1" / "target").mkdir()
    with overridden(tmp_path, ["echo"], {"dtype": "float32", "x": 'a "b" \\ ü'}) as repository:
        model = read_model(repository / "echo")
        assert model.parameters == {"model": "target", "dtype": "float32", "x": 'a "b" \\ ü'}
        folder = model.path("model")
        assert folder == (tmp_path / "echo" / "1" / "target").resolve()
    assert not repository.exists()
    assert read_model(tmp_path / "echo").parameters["dtype"] == "auto"


def test_without_overrides_the_repository_is_served_as_it_is(tmp_path: Path) -> None:
    with overridden(tmp_path, ["echo"], {}) as repository:
        assert repository == tmp_path


def test_an_unknown_model_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ServingError, match="no model 'echo'"),
        overridden(tmp_path, ["echo"], {"a": "b"}),
    ):
        pass


def test_make_names_the_draft_of_a_method() -> None:
    """make demo METHOD=… chooses the folder that has the (last) method's name."""

    def settings(method: str) -> str:
        command = ["make", "--dry-run", "demo", f"METHOD={method}"]
        root = Path(__file__).parents[2]
        made = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        return made.stdout.partition("--set ")[2]

    assert "draft_model=eagle3" in settings("suffix,eagle3")
    assert "draft_model=medusa" in settings("medusa")
    assert "draft_model=" not in settings("ngram")


@pytest.mark.parametrize("given", [None, "7"])
def test_the_demo_looks_up_no_answers_of_its_own_unless_it_is_told_to(monkeypatch, given):
    key = "suffix_decoding_max_cached_requests"
    seen = []

    def shown(options, arguments, console):
        config = (options.model_repository / "tandem" / "config.pbtxt").read_text()
        seen.extend(re.findall(f'{key}" value {{ string_value: "(.*?)"', config))
        return 0

    monkeypatch.setattr("tandem.serving.foreground.demo", shown)
    more = [] if given is None else ["--set", f"{key}={given}"]
    command = ["demo", "--model-repository", str(MODEL_REPOSITORY), *more]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert seen[-1] == (given or "0")  # the last entry of a key wins
