"""The files that an operator copies for several hosts are valid."""

import subprocess
from pathlib import Path

import pytest

from tandem import EngineConfig
from tandem.serving.model_config import read_model

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "several_hosts"


def test_the_parameters_make_a_configuration(tmp_path):
    original = (ROOT / "model_repository" / "tandem_vllm" / "config.pbtxt").read_text()
    declarations = original.split("parameters {", 1)[0]
    (tmp_path / "1").mkdir()
    (tmp_path / "config.pbtxt").write_text(declarations + (FOLDER / "parameters.pbtxt").read_text())
    model = read_model(tmp_path)
    config = EngineConfig.from_triton_parameters(model.parameters, model.version_folder)
    assert (config.engine, config.method) == ("vllm", "draft_model")
    assert config.tensor_parallel_size % config.draft_tensor_parallel_size == 0
    assert config.vllm_engine_args["distributed_executor_backend"] == "ray"


@pytest.mark.parametrize("name", ["common.sh", "head.sh", "worker.sh"])
def test_the_scripts_are_bash(name):
    subprocess.run(["bash", "-n", FOLDER / name], check=True)
