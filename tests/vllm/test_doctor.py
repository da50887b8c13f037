"""What vLLM itself says of a model before it is served."""

from pathlib import Path

import pytest

from tandem.doctor import Level
from tandem.doctor.models import examine_models

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

REPOSITORY = Path(__file__).parents[2] / "model_repository"


def test_a_target_without_a_tokenizer_is_named(tmp_path):
    """vLLM itself would take it until it loads."""
    target = REPOSITORY / "tandem" / "1" / "target"
    for file in target.iterdir():
        if file.name != "tokenizer.json":
            (tmp_path / file.name).symlink_to(file)
    parameters = {"model": str(tmp_path), "speculative_method": "none"}
    found = list(examine_models(REPOSITORY, ["tandem_vllm"], parameters))
    assert [one.subject for one in found if one.level] == ["tandem_vllm: vllm"]
    assert "tokenizer.json" in found[-1].text


@pytest.mark.parametrize(
    ("parameters", "level", "said"),
    [
        ({}, Level.OK, "takes its parameters and checkpoints' configurations"),
        ({"vllm_engine_args": '{"max_seats": 3}'}, Level.FAILURE, "argument 'max_seats'"),
    ],
)
def test_what_it_would_not_start_with_is_told_before(parameters, level, said):
    findings = list(examine_models(REPOSITORY, ["tandem_vllm"], parameters))
    [found] = [one for one in findings if one.subject == "tandem_vllm: vllm"]
    assert found.level == level
    assert said in found.text
    assert max(one.level for one in findings) == level
