"""The places of vLLM that the plug-ins replace or rely on, and the versions they are known in.

A plug-in replaces all of its seams or none: where a vLLM has moved one, it names the seam and
leaves vLLM as it was.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

SUPPORTED_VERSIONS = ("0.32",)


class Seam(NamedTuple):
    """A function of vLLM that a plug-in replaces or relies on."""

    module: str
    name: str
    """Dotted, inside the module."""
    parameters: tuple[str, ...]
    """The first ones that it must take, in order."""

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    def find(self) -> Any:
        """The object. Raises ImportError or AttributeError where it is gone."""
        found: Any = importlib.import_module(self.module)
        for part in self.name.split("."):
            found = getattr(found, part)
        return found

    def replace(self, make: Callable[[Any], Any]) -> None:
        """Puts make(original) in its place."""
        owner: Any = importlib.import_module(self.module)
        *path, last = self.name.split(".")
        for part in path:
            owner = getattr(owner, part)
        original = inspect.getattr_static(owner, last)
        static = isinstance(original, staticmethod)
        made = make(getattr(owner, last))
        setattr(owner, last, staticmethod(made) if static else made)

    def trouble(self) -> str | None:
        """What is wrong with it in this vLLM."""
        try:
            found = self.find()
        except (ImportError, AttributeError) as error:
            return f"{self} is gone ({error})"
        taken = tuple(inspect.signature(found).parameters)[: len(self.parameters)]
        return None if taken == self.parameters else f"{self} takes {taken}, not {self.parameters}"


def is_supported(version: str) -> bool:
    """Whether this vLLM is one of those that the seams are known in."""
    return version.startswith(tuple(f"{known}." for known in SUPPORTED_VERSIONS))


def troubles(seams: Sequence[Seam]) -> list[str]:
    """Why this vLLM cannot be given what these seams are for, if so."""
    version = importlib.import_module("vllm").__version__
    if not is_supported(version):
        return [f"this is vLLM {version}, known are {', '.join(SUPPORTED_VERSIONS)}"]
    found = [seam.trouble() for seam in seams]
    return [trouble for trouble in found if trouble]
