"""The models of a repository: their parameters and the checkpoints these name."""

import pickle
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tandem.config import HEADS, EngineConfig
from tandem.doctor.finding import Finding, Level, failure, ok
from tandem.engine_process import interpreter
from tandem.errors import ConfigError, TandemError
from tandem.serving.model_config import ServedModel, read_model


def examine_models(
    repository: Path, names: Sequence[str] | None, parameters: Mapping[str, str]
) -> Iterator[Finding]:
    present = sorted(path.parent.name for path in repository.glob("*/config.pbtxt"))
    if not present:
        remedy = "name one with --model-repository"
        yield failure("models", f"{repository} is no model repository", remedy)
    for name in names or present:
        if name not in present:
            yield failure(name, f"not in {repository}", f"choose one of {', '.join(present)}")
            continue
        yield from _examine(repository / name, parameters, asked_for=names is not None)


def _examine(folder: Path, parameters: Mapping[str, str], asked_for: bool) -> Iterator[Finding]:
    try:
        model = read_model(folder)
        if not (model.version_folder / "model.py").is_file():
            yield failure(folder.name, f"{model.version_folder} holds no model.py", "restore it")
        config = EngineConfig.from_triton_parameters(
            {**model.parameters, **parameters}, model.version_folder
        )
        yield ok(folder.name, f"parameters are valid, speculation by {config.method}")
        own = config.engine == "native"
        yield from _checkpoints(model, config) if own else _vllm(model, config, asked_for)
    except TandemError as error:
        yield failure(folder.name, str(error), "")


def _vllm(model: ServedModel, config: EngineConfig, asked_for: bool) -> Iterator[Finding]:
    """What vLLM says by itself, in its own environment, and whether weights can be read."""
    try:
        python = interpreter(config)
    except ConfigError as error:  # of a model that nobody has asked for it may yet be to come
        level = Level.FAILURE if asked_for else Level.WARNING
        yield Finding(level, model.name, str(error))
        return
    yield _readable(f"{model.name}: model", config.model)
    if config.draft_model is not None and config.method != "none":
        yield _readable(f"{model.name}: draft_model", config.draft_model)
    command = [python, "-m", "tandem.vllm.checks"]
    try:
        run = subprocess.run(command, input=pickle.dumps(config), capture_output=True)
    except OSError as error:
        yield failure(f"{model.name}: vllm", f"{python} does not run ({error})", "")
        return
    said = (run.stderr if run.returncode else run.stdout).decode(errors="replace").split("\n")
    text = next((line for line in reversed(said) if line.strip()), f"{python} says nothing")
    if run.returncode:
        yield failure(f"{model.name}: vllm", text, "")
    else:
        yield ok(f"{model.name}: vllm", text)


def _readable(subject: str, folder: Path) -> Finding:
    """A checkpoint of any architecture: what there is of safetensors is whole."""
    from safetensors import SafetensorError, safe_open

    if not (folder / "config.json").is_file():
        return failure(subject, f"{folder} holds no config.json", "name a checkpoint's folder")
    files = sorted(folder.glob("*.safetensors"))
    for path in files:
        try:
            with safe_open(path, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            return failure(subject, f"{path} cannot be read ({error})", "restore the file")
    size = sum(path.stat().st_size for path in files) / 2**20
    return ok(subject, f"{folder}, {size:.1f} MiB of safetensors, readable")


def _checkpoints(model: ServedModel, config: EngineConfig) -> Iterator[Finding]:
    from tandem.assembly import check_ranks, read_draft_config
    from tandem.drafting.build import choose_translation
    from tandem.models.config import read_model_config
    from tandem.runners.placement import place
    from tandem.tokenizer import Tokenizer

    findings = [_weights(f"{model.name}: model", config.model)]
    if config.draft_model is not None and config.method == "draft_model":
        findings.append(_weights(f"{model.name}: draft_model", config.draft_model))
    if config.method in HEADS:
        findings.append(_head(f"{model.name}: draft_model", config))
    yield from findings
    if any(finding.level is Level.FAILURE for finding in findings):
        return
    model_config, draft = read_model_config(config.model), None
    if config.method == "draft_model":
        draft = read_draft_config(config)
        found = choose_translation(config, model_config, draft, Tokenizer(config.model))
        agreement = str(found) if found else "draft and target agree"
        yield ok(f"{model.name}: vocabulary", agreement)
    check_ranks(config, model_config, draft)
    place(config)


def _head(subject: str, config: EngineConfig) -> Finding:
    """Its files can be read; whether they fit the target is seen at load."""
    from tandem.drafting.heads.checkpoint import read_head

    head = read_head(config.draft_model or config.model)
    return ok(subject, f"{config.method}, {len(head.tensors)} tensors in {head.folder}")


def _weights(subject: str, folder: Path) -> Finding:
    """Every tensor that the decoder needs is there, in its shape; data is not read."""
    from safetensors import SafetensorError, safe_open

    from tandem.models.config import read_model_config
    from tandem.models.loader import checkpoint_map, safetensors_files

    shapes: dict[str, Any] = {}
    for path in safetensors_files(folder):
        try:
            with safe_open(path, framework="numpy") as tensors:
                names = tensors.keys()
                shapes |= {name: tensors.get_slice(name).get_shape() for name in names}
        except (SafetensorError, OSError) as error:
            return failure(subject, f"{path} cannot be read ({error})", "restore the file")
    config = read_model_config(folder)
    for name, slot in checkpoint_map(config).items():
        if name not in shapes or shapes[name][0] != slot.rows:
            has = f"the shape {shapes[name]}" if name in shapes else "no such tensor"
            text = f"{name} should have {slot.rows} rows, but {folder} has {has}"
            return failure(subject, text, "use weights that belong to config.json")
    size = sum(path.stat().st_size for path in safetensors_files(folder)) / 2**20
    return ok(subject, f"{config.family}, {config.num_layers} layers, {size:.1f} MiB, complete")
