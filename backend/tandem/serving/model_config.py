"""Reads a model's config.pbtxt."""

from pathlib import Path
from typing import NamedTuple

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tandem.serving.errors import ServingError


class ServedModel(NamedTuple):
    """A model of a repository, as its config.pbtxt describes it."""

    name: str
    version_folder: Path
    parameters: dict[str, str]
    warmed_up: bool
    """Whether Triton sends it requests before it counts as loaded."""

    def path(self, key: str) -> Path | None:
        """A folder among the parameters; relative ones start at the version folder."""
        value = self.parameters.get(key, "").strip()
        return (self.version_folder / value).resolve() if value else None


def read_model(folder: Path) -> ServedModel:
    """Raises `ServingError` when `folder` is no model or its configuration is malformed."""
    path = folder / "config.pbtxt"
    try:
        text = path.read_text(encoding="utf-8")
        config = text_format.Parse(text, model_config_pb2.ModelConfig())
    except OSError as error:
        raise ServingError(f"{path} cannot be read: {error.strerror}.") from None
    except text_format.ParseError as error:
        raise ServingError(f"{path} is no model configuration: {error}.") from None
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    return ServedModel(folder.name, _newest_version(folder), parameters, bool(config.model_warmup))


def _newest_version(folder: Path) -> Path:
    """The version that Triton serves by default."""
    versions = [path for path in folder.iterdir() if path.is_dir() and path.name.isdigit()]
    if not versions:
        raise ServingError(f"{folder} has no version folder: make {folder / '1'} with model.py.")
    return max(versions, key=lambda path: int(path.name))
