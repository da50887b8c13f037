"""Serves a model with other parameters than its config.pbtxt, which stays as it is."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tandem.serving.options import check_models


@contextmanager
def overridden(
    repository: Path, models: Sequence[str], parameters: Mapping[str, str]
) -> Iterator[Path]:
    """A repository in which `models` have these parameters; `repository` itself when none are
    given."""
    if not parameters:
        yield repository
        return
    check_models(repository, models)
    with TemporaryDirectory(prefix="tandem-models-") as folder:
        for name in models:
            _overlay(repository / name, Path(folder) / name, parameters)
        yield Path(folder)


def _overlay(source: Path, target: Path, parameters: Mapping[str, str]) -> None:
    target.mkdir()
    for path in source.iterdir():
        if path.name != "config.pbtxt":
            (target / path.name).symlink_to(path.resolve())
    # The last entry of a key wins.
    entries = [entry(key, value) for key, value in parameters.items()]
    text = (source / "config.pbtxt").read_text(encoding="utf-8")
    (target / "config.pbtxt").write_text("\n".join([text, *entries]), encoding="utf-8")


def entry(key: str, value: str) -> str:
    return f"parameters {{ key: {_quoted(key)} value {{ string_value: {_quoted(value)} }} }}\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # text protobuf has JSON's escapes
