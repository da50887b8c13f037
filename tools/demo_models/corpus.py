"""The corpus: the Python standard library's own source, and which of its files are held out.

Every installation carries it, so the models can be made again anywhere. A file is held out by a
hash of its name, so that the choice depends on nothing else.
"""

import hashlib
import sysconfig
from pathlib import Path
from typing import NamedTuple

HELD_OUT_PERCENT = 4

# Tests repeat themselves, tables are not code, installed packages are not the library's own.
_SKIPPED_FOLDERS = frozenset(
    {
        "test",
        "tests",
        "idlelib",
        "idle_test",
        "encodings",
        "pydoc_data",
        "site-packages",
        "__pycache__",
    }
)
_SKIPPED_PREFIXES = ("_sysconfigdata", "config-")


class Document(NamedTuple):
    """One source file: its path inside the library (with forward slashes) and its text."""

    name: str
    text: str


class Corpus(NamedTuple):
    """The library's files: those that are trained on, those that are only measured on."""

    train: list[Document]
    held_out: list[Document]


def is_held_out(name: str) -> bool:
    """Whether the file of this name is kept away from the tokenizer and from every training run."""
    return (
        int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % 100 < HELD_OUT_PERCENT
    )


def read_corpus(folder: Path | None = None) -> Corpus:
    """Reads every Python file of the standard library (or of `folder`), sorted by name."""
    root = folder or Path(sysconfig.get_paths()["stdlib"])
    corpus = Corpus([], [])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not _is_wanted(name):
            continue
        text = _read_text(path)
        if text.strip():
            document = Document(name.as_posix(), text)
            (corpus.held_out if is_held_out(document.name) else corpus.train).append(document)
    return corpus


def _is_wanted(name: Path) -> bool:
    inside_skipped = any(part in _SKIPPED_FOLDERS for part in name.parts)
    return not inside_skipped and not any(part.startswith(_SKIPPED_PREFIXES) for part in name.parts)


def _read_text(path: Path) -> str:
    """The file's text; nothing where it is not UTF-8 (a few files declare another encoding)."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""
