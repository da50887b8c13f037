"""What is measured: a model on a server that is ready, and how its configuration lets it draft."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tandem.config import LOOKUPS, EngineConfig
from tandem.serving import Endpoints
from tandem.triton_http import OK, ask, model_path
from tools.load_profiles.profile import ProfileError

SPECULATION = ("speculative_method", "draft_model", "speculative_tree")
"""Parameters that say what drafts; what is recommended holds for these values alone."""


class Target(NamedTuple):
    """A model on a server that is ready."""

    model: str
    endpoints: Endpoints


class Drafting(NamedTuple):
    """How a model drafts."""

    method: str
    most: int
    """Tokens in a round, of a tree its nodes; 0: the model decodes plainly."""
    tree: bool
    adaptive: bool
    remembers: bool
    """Whether answers to earlier requests are drafted from."""
    parameters: Mapping[str, str]
    """Those of `SPECULATION` that make it draft so, as they are written in its configuration."""

    def title(self, draft_tokens: int) -> str:
        """Of requests that allow so many. A draft may be shorter: where more would not pay, where a
        lookup finds less, and near an answer's end."""
        if not draft_tokens:
            return "plain"
        return f"up to {draft_tokens} {'nodes' if self.tree else 'drafted'}"

    def __str__(self) -> str:
        if not self.most:
            return "The model has no speculative_method: what follows is plain decoding alone."
        what = "a tree of up to {} nodes" if self.tree else "up to {} tokens"
        reach = "no further than pays" if self.adaptive else "as far as it may"
        found = f"The model drafts by {self.method}, {what.format(self.most)} a round, {reach}."
        kept = " Of a tree's nodes one path is kept at most: a low share of them is no bad draft."
        return found + (kept if self.tree else "")


def drafting(target: Target) -> Drafting:
    """By the configuration that the server has loaded."""
    model, endpoints = target
    path = model_path(model, "config")
    answer = ask(endpoints.http, path)
    if answer.status != OK:
        raise ProfileError(
            f"http://{endpoints.http}{path} does not answer: correct MODEL and HTTP_PORT, or see "
            "whether the server still runs."
        )
    return _of(answer.json().get("parameters", {}))


def _of(entries: Mapping[str, Any]) -> Drafting:
    """Parameters as Triton tells them."""
    given = {key: str(entry["string_value"]).strip() for key, entry in entries.items()}
    config = EngineConfig.from_triton_parameters(given, Path())
    if config.method in LOOKUPS:
        given.pop("draft_model", None)  # nobody reads it
    return Drafting(
        ", ".join(config.methods),
        config.lookahead,
        config.speculative_tree is not None,
        config.adaptive_speculation and config.engine == "native",
        "suffix" in config.methods and config.suffix_decoding_max_cached_requests > 0,
        {key: given[key] for key in SPECULATION if given.get(key)},
    )
