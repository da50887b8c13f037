import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tandem.doctor import Level, examine
from tandem.doctor.models import examine_models
from tandem.doctor.software import examine_software
from tandem.models.config import read_model_config
from tandem.models.loader import checkpoint_map
from tests.serving.models import ECHO, write_model

PARAMETER = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 16,
    "max_position_embeddings": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "vocab_size": 4,
}
VOCABULARY = {"a": 0, "b": 1, "c": 2, "d": 3}


def write_checkpoint(folder: Path, vocabulary: dict[str, int] = VOCABULARY) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(SHAPE))
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
    slots = checkpoint_map(read_model_config(folder))
    tensors = {name: torch.zeros(slot.rows, 1) for name, slot in slots.items()}
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One model with a target and a draft that belong together."""
    parameters = {"model": "target", "draft_model": "draft", "max_model_len": "32"}
    config = 'backend: "python"\n' + "".join(PARAMETER.format(*item) for item in parameters.items())
    write_model(tmp_path, "pair", ECHO, config)
    for name in ("target", "draft"):
        write_checkpoint(tmp_path / "pair" / "1" / name)
    return tmp_path


def failures(repository: Path, **parameters: str) -> str:
    findings = examine_models(repository, None, parameters)
    return "\n".join(
        " ".join(finding[1:]) for finding in findings if finding.level == Level.FAILURE
    )


def test_a_sound_model_passes(repository: Path) -> None:
    assert failures(repository) == ""


def test_a_wrong_parameter_is_named(repository: Path) -> None:
    with (repository / "pair" / "config.pbtxt").open("a") as config:
        config.write(PARAMETER.format("num_speculative_tokens", "many"))
    assert "num_speculative_tokens" in failures(repository)
    assert failures(repository, num_speculative_tokens="2") == ""
    assert "block_size" in failures(repository, num_speculative_tokens="2", block_size="none")


def test_a_missing_environment_fails_a_model_that_is_asked_for(
    repository: Path,
) -> None:
    parameters = {"engine": "vllm", "vllm_python": "/nowhere/python3"}
    for names, level in ((None, Level.WARNING), (["pair"], Level.FAILURE)):
        found = [one for one in examine_models(repository, names, parameters) if one.level]
        assert [(one.level, "make setup-vllm" in one.text) for one in found] == [(level, True)]


@pytest.fixture
def said(tmp_path: Path) -> Callable[[int, str], str]:
    """Stands in for vLLM's environment: exits so and says that; its path."""

    def write(code: int, text: str) -> str:
        python = tmp_path / f"python{code}"
        to = 2 if code else 1
        python.write_text(f"#!/bin/sh\ncat > /dev/null\necho '{text}\n' >&{to}\nexit {code}\n")
        python.chmod(0o755)
        return str(python)

    return write


def test_what_vllm_says_of_a_model_is_told(repository: Path, said) -> None:
    vllm = {"engine": "vllm", "vllm_python": said(0, "INFO\nvLLM takes it")}
    findings = list(examine_models(repository, ["pair"], vllm))
    assert [one.text for one in findings if one.subject == "pair: vllm"] == ["vLLM takes it"]
    assert not failures(repository, **vllm)
    vllm["vllm_python"] = said(1, "INFO\nNo such heads.")
    assert failures(repository, **vllm).splitlines() == ["pair: vllm No such heads. "]


def test_weights_that_vllm_could_not_read_are_named(repository: Path, said) -> None:
    vllm = {"engine": "vllm", "vllm_python": said(0, "vLLM takes it")}
    draft = repository / "pair" / "1" / "draft"
    (draft / "model.safetensors").write_bytes(b"0")
    assert f"{draft}/model.safetensors cannot be read" in failures(repository, **vllm)
    (draft / "config.json").unlink()
    assert f"{draft} holds no config.json" in failures(repository, **vllm)
    assert not failures(repository, **vllm, speculative_method="none")  # nobody reads it then


def test_an_interpreter_that_is_none_is_named(repository: Path, tmp_path: Path) -> None:
    found = failures(repository, engine="vllm", vllm_python=str(tmp_path))
    assert f"{tmp_path} does not run" in found


def test_a_malformed_config_is_named(repository: Path) -> None:
    (repository / "pair" / "config.pbtxt").write_text("backend = python")
    assert "config.pbtxt is no model configuration" in failures(repository)


def test_missing_and_truncated_weights_are_named(repository: Path) -> None:
    (repository / "pair" / "1" / "target" / "model.safetensors").unlink()
    draft = repository / "pair" / "1" / "draft" / "model.safetensors"
    draft.write_bytes(draft.read_bytes()[:-8])
    found = failures(repository)
    assert "target/model.safetensors cannot be read" in found
    assert "draft/model.safetensors cannot be read" in found


def test_weights_of_another_shape_are_named(repository: Path) -> None:
    config = repository / "pair" / "1" / "target" / "config.json"
    config.write_text(json.dumps(SHAPE | {"intermediate_size": 32}))
    assert "model.layers.0.mlp.gate_proj.weight should have 32 rows" in failures(repository)


def write_vocabulary(repository: Path, vocabulary: dict[str, int]) -> None:
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"}
    text = json.dumps({"version": "1.0", "model": model})
    (repository / "pair" / "1" / "draft" / "tokenizer.json").write_text(text)


def test_what_a_draft_with_another_tokenizer_shares_is_told(repository: Path) -> None:
    write_vocabulary(repository, {"a": 1, "b": 0, "x": 2, "y": 3})
    findings = list(examine_models(repository, None, {}))
    assert any("knows 2 of the target's 4 tokens" in finding.text for finding in findings)
    write_vocabulary(repository, {"a0": 0, "a": 1, "w": 2, "y": 3})
    assert not failures(repository)
    write_vocabulary(repository, {"p": 0, "q": 1, "w": 2, "y": 3})
    assert "shares 0 of the 4 tokens" in failures(repository)


def test_a_head_needs_no_decoder_of_its_own(repository: Path) -> None:
    config = repository / "pair" / "config.pbtxt"
    config.write_text(config.read_text() + PARAMETER.format("speculative_method", "eagle3"))
    head = repository / "pair" / "1" / "draft"
    (head / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle3"]}))
    assert not failures(repository)
    (head / "model.safetensors").unlink()
    assert "draft holds no weights" in failures(repository)


def test_a_missing_server_is_a_failure(tmp_path: Path) -> None:
    findings = list(examine_software(tmp_path / "tritonserver"))
    assert "no executable file" in findings[-1].remedy
    assert findings[-1].level == Level.FAILURE


def test_a_server_that_does_not_run_is_a_failure(tmp_path: Path) -> None:
    binary = tmp_path / "bin" / "tritonserver"
    binary.parent.mkdir()
    binary.write_text("#!/bin/sh\necho libgone.so: not found >&2\nexit 127\n")
    binary.chmod(0o755)
    failed = [finding for finding in examine_software(binary) if finding.level == Level.FAILURE]
    assert "libgone.so" in failed[0].text
    assert "python backend" in failed[1].subject


def test_a_check_that_breaks_does_not_hide_the_others(repository: Path, monkeypatch) -> None:
    monkeypatch.setattr("tandem.doctor.examine_machine", lambda: iter([1 / 0 for _ in "x"]))
    findings = list(examine(repository, None, None, {}))
    assert any("ZeroDivisionError" in finding.text for finding in findings)
    assert any(finding.subject.startswith("pair") for finding in findings)


def test_the_command_exits_with_its_finding(repository: Path) -> None:
    command = [sys.executable, "-m", "tandem.cli", "doctor", "--model-repository", str(repository)]
    sound = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert sound.returncode == 0, sound.stdout
    assert "draft and target agree" in sound.stdout
    (repository / "pair" / "1" / "target" / "config.json").unlink()
    broken = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert broken.returncode == 1
    assert "config.json does not exist" in broken.stdout
