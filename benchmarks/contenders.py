"""Who is measured: an engine with a method on a model, started as a peer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from benchmarks.common import CACHE, MODELS, digest, made_once
from benchmarks.peers.process import Peer, Software, checkpoint
from benchmarks.peers.worker import Case
from tools.demo_models.__main__ import pad_command


class Contender(NamedTuple):
    """An engine with a method."""

    software: Software
    method: str = "none"
    tokens: int = 0

    @property
    def title(self) -> str:
        """In the table."""
        name = {"none": "plain", "draft_model": "draft model", "ngram": "n-gram"}
        return f"{self.software.name}, {name.get(self.method, self.method)}" + (
            f", k = {self.tokens}" if self.tokens else ""
        )


def model_folder(megabytes: int | None) -> Path:
    """The demo target, or a larger one that computes the same, made once."""
    if megabytes is None:
        return MODELS / "target"
    shipped = MODELS / "target"
    folder = CACHE / "models" / f"target-{megabytes}-{digest(shipped)}"
    return made_once(folder, lambda out: pad_command(megabytes, out))


def started(one: Contender, folder: Path, threads: int, most: int = 1) -> Peer:
    """Loaded, for at most so many prompts at once."""
    draft = checkpoint(one.software, MODELS / "draft") if "draft_model" in one.method else ""
    target = checkpoint(one.software, folder)
    case = Case(str(target), str(draft), one.method, one.tokens, threads, most)
    log = CACHE / "logs" / f"{folder.name}-{one.title.replace(' ', '-').replace(',', '')}.log"
    return Peer(one.software, case, log)
