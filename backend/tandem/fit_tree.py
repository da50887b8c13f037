"""The command `tandem fit-tree`: the shape of a static draft tree, from measured accuracies.

Medusa's choices (arXiv 2401.10774, section 2.3.3): how often the text goes on with a head's best,
second best, ... guess says how often a path of guesses is right, and the likeliest paths are the
tree. Accuracies are measured on the target's own texts: each place is guessed behind the true ones.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from tandem.config import EngineConfig
from tandem.drafting.chain import Chain, ChainProposer
from tandem.drafting.steps import Guesser
from tandem.errors import ConfigError, InvalidRequestError
from tandem.in_process import Engine
from tandem.request import SamplingParams
from tandem.serving.model_config import read_model
from tandem.verification.sampler import Sampler

RANKS = 10  # guesses a place that are considered


class Fit(NamedTuple):
    """A tree and what is to be expected of it."""

    paths: list[list[int]]
    """Ranks of guesses; a path's beginning comes before it."""
    expected: float
    """Tokens a round, the target's own counted."""


def fit(accuracies: Sequence[Sequence[float]], nodes: int) -> Fit:
    """The best tree of `nodes` nodes. accuracies [depth][rank]: how often that guess is right."""
    paths: list[list[int]] = []  # the first is that of the target's own token
    expected = 0.0
    likeliest: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
    while likeliest and len(paths) <= nodes:
        negative, path = heapq.heappop(likeliest)
        if negative == 0:
            break
        paths.append(list(path))
        expected -= negative
        if len(path) < len(accuracies):
            for rank, share in enumerate(accuracies[len(path)]):
                heapq.heappush(likeliest, (negative * share, (*path, rank)))
    return Fit(paths[1:], expected)


def measure(
    engine: Engine, prompts: Sequence[str], depth: int, max_tokens: int
) -> list[list[float]]:
    """Accuracies [depth][RANKS] on the target's greedy answers. Raises `ConfigError`."""
    guesser = getattr(engine.proposer, "guesser", None)
    if guesser is None or len(engine.config.methods) > 1:
        raise ConfigError(
            f"speculative_method is {','.join(engine.config.methods)}, which guesses without a "
            "model or with several methods: set the one method that the tree is for."
        )
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    ids = [engine.tokenizer.encode(prompt) for prompt in prompts]
    plain = engine.generate(ids, params.model_copy(update={"num_draft_tokens": 0}))
    texts = {tuple(own): [*own, *output.token_ids] for own, output in zip(ids, plain, strict=True)}
    vocab, deepest = engine.target.config.vocab_size, min(depth, guesser.max_depth)
    counter = RankCounter(guesser, engine.sampler, vocab, texts, deepest)
    engine.proposer = counter
    engine.generate(ids, params)
    return counter.accuracies()


class RankCounter(ChainProposer):
    """Drafts what is known to follow, and counts where the guesser would have put it."""

    def __init__(
        self,
        guesser: Guesser,
        sampler: Sampler,
        vocab: int,
        texts: dict[tuple[int, ...], list[int]],
        depth: int,
    ) -> None:
        super().__init__(guesser, sampler, vocab)
        self.texts = texts
        self.counts = torch.zeros((depth, RANKS + 1), dtype=torch.int64)

    def _at_once(self, chains: Sequence[Chain], q: Tensor | None) -> bool:
        return False  # every level's logits are looked at

    def _append(self, logits: Tensor, chains: Sequence[Chain], q: Tensor | None) -> None:
        for chain in chains:
            request, place = chain.request, len(chain.tokens)
            text = self.texts[tuple(request.tokens[: request.num_prompt])]
            truth = text[len(request.tokens) + place]
            line = logits[chain.row]
            rank = int((line > line[truth]).sum())
            if place < len(self.counts):
                self.counts[place, min(rank, RANKS)] += 1
            chain.tokens.append(truth)

    def accuracies(self) -> list[list[float]]:
        """[depth][RANKS]; places that were never guessed are left out."""
        totals = self.counts.sum(1, keepdim=True)
        shares: list[list[float]] = (self.counts / totals.clamp_min(1))[:, :RANKS].tolist()
        return [line for line, total in zip(shares, totals, strict=True) if total]


def run(
    folder: Path, settings: dict[str, str], prompts: Path, nodes: int, depth: int, max_tokens: int
) -> None:
    """Measures, prints the accuracies and the line for config.pbtxt."""
    texts = read_prompts(prompts)
    served = read_model(folder)
    own = {"speculative_tree": "", "num_speculative_tokens": str(depth)}
    parameters = served.parameters | settings | own
    config = EngineConfig.from_triton_parameters(parameters, served.version_folder)
    if config.engine != "native":
        raise ConfigError(f"{folder.name} runs on {config.engine}, which drafts chains alone.")
    every = config.model_copy(update={"adaptive_speculation": False})  # place is to be guessed
    with Engine(every) as engine:
        accuracies = measure(engine, texts, depth, max_tokens)
    console = Console(highlight=False)
    console.print(_table(config.method, accuracies))
    found = fit(accuracies, nodes)
    if not found.paths:
        raise ConfigError("No guess was ever right on these prompts: a tree cannot help here.")
    _show(found, console)


def _table(method: str, accuracies: Sequence[Sequence[float]]) -> Table:
    table = Table(title=f"{method}: share of places with the right guess, %")
    for heading in ("place", *(f"#{rank + 1}" for rank in range(RANKS))):
        table.add_column(heading, justify="right")
    for place, line in enumerate(accuracies, 1):
        table.add_row(str(place), *(f"{100 * share:.1f}" for share in line))
    return table


def _show(found: Fit, console: Console) -> None:
    """The lines for config.pbtxt."""
    console.print(f"{len(found.paths)} nodes, {found.expected:.2f} tokens a round expected:")
    for key, value in (
        ("speculative_tree", json.dumps(found.paths)),
        ("num_speculative_tokens", str(len(found.paths))),
    ):
        entry = f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        console.print(entry, soft_wrap=True, markup=False)


def read_prompts(path: Path) -> list[str]:
    """A JSON list of strings. Raises `InvalidRequestError`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{path} cannot be read ({error}): give a JSON file.") from None
    if not isinstance(found, list) or not found or not all(isinstance(t, str) for t in found):
        raise InvalidRequestError(f'{path} should hold a JSON list of prompts, such as ["def"].')
    return found
