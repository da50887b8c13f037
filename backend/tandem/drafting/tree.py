"""A guesser's tree: several guesses for a place, verified together.

Dynamic (EAGLE-2, Li et al. 2024, arXiv 2406.16858): each level feeds the `top_k` nodes that are
likeliest by the product of their guesses' probabilities and collects the `top_k` best guesses
behind each; of everything collected the likeliest nodes, as many as the request may draft, are
the draft, the likeliest first. Since a child is never likelier than its parent, that is a tree.

Static (Medusa): the draft has the shape of a list of paths, each a list of ranks: [0, 1] is the
second guess behind the first one.

What is drafted follows from the committed text alone, so that verification by matching is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tandem.drafting import Computed, Draft, Proposer, Verdict
from tandem.drafting.steps import Guesser, Level
from tandem.scheduler import Decode
from tandem.verification.sampler import Sampler
from tandem.verification.scores import Row, scores

Shape = Sequence[Sequence[int]]
DEEPEST = 16


class Node(NamedTuple):
    """A guess."""

    token: int
    score: float
    """Log-probability of the path that ends here."""
    parent: int
    """The collected node before it; -1: the text."""
    ranks: tuple[int, ...]
    """The path as ranks of guesses."""
    path: tuple[int, ...]
    """The path as tokens."""


class _Tree:
    """A request's draft while it grows."""

    def __init__(self, place: int, decode: Decode) -> None:
        self.place = place
        self.request = decode.request
        self.lookahead = decode.lookahead
        self.nodes: list[Node] = []
        self.fed: list[int] = []
        """Collected nodes that were fed, in order."""
        self.frontier: list[int] = [-1]
        """Collected nodes whose guesses come next, and..."""
        self.rows: list[int] = []
        """... the row of the logits that holds them."""

    def level(self, chosen: Sequence[int], origins: Sequence[int]) -> Level:
        """Feeds the chosen nodes."""
        self.fed += chosen
        places = {node: index for index, node in enumerate(self.fed)}
        tokens = [self.nodes[node].token for node in self.fed]
        parents = [places.get(self.nodes[node].parent, -1) for node in self.fed]
        return Level(self.request, tokens, parents, len(chosen), origins)


class TreeProposer(Proposer):
    """Proposes trees."""

    def __init__(self, guesser: Guesser, sampler: Sampler, top_k: int, shape: Shape | None) -> None:
        self.guesser = guesser
        self.sampler = sampler
        self.taps, self.reads_all = guesser.taps, guesser.reads_all
        self.top_k = top_k
        self.shape = None if shape is None else {tuple(path) for path in shape}
        self.depth = min(guesser.max_depth, DEEPEST)
        if self.shape:
            self.longest = len(self.shape)
            self.depth = min(self.depth, max(len(path) for path in self.shape))
            self.top_k = 1 + max(rank for path in self.shape for rank in path)

    def propose(self, decodes: Sequence[Decode], alone: bool = False) -> Draft:
        empty = Draft([[] for _ in decodes], [[] for _ in decodes])
        asking = [place for place, decode in enumerate(decodes) if decode.lookahead]
        if not asking:
            return empty
        deepest = [  # of what is guessed side by side no more than the tree has levels
            decodes[place]._replace(lookahead=min(decodes[place].lookahead, self.depth))
            for place in asking
        ]
        ready = self.guesser.ready(deepest)
        if not ready:
            return empty
        trees = [_Tree(asking[index], decodes[asking[index]]) for index in ready]
        for row, tree in enumerate(trees):
            tree.rows = [row]
        logits = self.guesser.begin([deepest[index] for index in ready])
        growing, level = trees, 1
        while growing:
            self._collect(growing, logits)
            growing, levels = self._choose(growing, level)
            if growing:
                logits = self.guesser.extend(levels)
                _assign_rows(growing)
                level += 1
        return self._draft(empty, trees)

    def observe(self, decodes: Sequence[Decode], draft: Draft, verdicts: Sequence[Verdict]) -> None:
        """The KV of the fed nodes lies in another order than the draft's."""
        for (request, _), tokens in zip(decodes, draft.tokens, strict=False):
            if tokens:
                self.guesser.keep(request, 0)

    def absorb(self, computed: Sequence[Computed], features: Tensor) -> None:
        self.guesser.absorb(computed, features)

    def _collect(self, trees: Sequence[_Tree], logits: Tensor) -> None:
        """The best guesses behind every node of the frontiers."""
        behind = [(tree, node) for tree in trees for node in tree.frontier]
        picked = logits[[row for tree in trees for row in tree.rows]]
        rows = [
            Row(tree.request, tree.nodes[node].path if node >= 0 else ()) for tree, node in behind
        ]
        likely = scores(picked, rows).log_softmax(-1).topk(self.top_k, -1)
        for (tree, node), values, ids in zip(
            behind, likely.values.tolist(), likely.indices.tolist(), strict=True
        ):
            base = tree.nodes[node] if node >= 0 else Node(0, 0.0, -1, (), ())
            for rank, (value, token) in enumerate(zip(values, ids, strict=True)):
                ranks = (*base.ranks, rank)
                if value > -torch.inf and (self.shape is None or ranks in self.shape):
                    path = (*base.path, token)
                    tree.nodes.append(Node(token, base.score + value, node, ranks, path))

    def _choose(self, trees: Sequence[_Tree], level: int) -> tuple[list[_Tree], list[Level]]:
        """The nodes of the newest level that are worth guessing on from."""
        growing: list[_Tree] = []
        levels: list[Level] = []
        for tree in trees:
            chosen = self._next_frontier(tree, level)
            if chosen:
                row_of = dict(zip(tree.frontier, tree.rows, strict=True))
                origins = [row_of[tree.nodes[node].parent] for node in chosen]
                levels.append(tree.level(chosen, origins))
                tree.frontier = chosen
                growing.append(tree)
        return growing, levels

    def _next_frontier(self, tree: _Tree, level: int) -> list[int]:
        room = tree.lookahead - len(tree.fed) - 1
        if level >= min(self.depth, tree.lookahead) or room <= 0:
            return []
        newest = [i for i, node in enumerate(tree.nodes) if len(node.ranks) == level]
        if self.shape is not None:
            inner = {path[:level] for path in self.shape if len(path) > level}
            return [i for i in newest if tree.nodes[i].ranks in inner][:room]
        room = min(room, self.top_k)
        best = sorted(newest, key=lambda index: -tree.nodes[index].score)[:room]
        kept = {index for index, _ in _best(tree.nodes, tree.lookahead)}
        return sorted(index for index in best if index in kept)

    def _draft(self, empty: Draft, trees: Sequence[_Tree]) -> Draft:
        assert empty.parents is not None
        for tree in trees:
            kept = [index for index, _ in _best(tree.nodes, tree.lookahead)]
            number = {index: node for node, index in enumerate(kept, 1)}
            empty.tokens[tree.place] = [tree.nodes[index].token for index in kept]
            empty.parents[tree.place] = [number.get(tree.nodes[i].parent, 0) for i in kept]
        return empty


def _best(nodes: Sequence[Node], count: int) -> list[tuple[int, Node]]:
    """The likeliest nodes; among equals those collected first, so that parents come along."""
    order = sorted(enumerate(nodes), key=lambda item: (-item[1].score, item[0]))
    return order[:count]


def _assign_rows(trees: Sequence[_Tree]) -> None:
    """The new logits' rows are the frontiers' nodes, tree after tree."""
    first = 0
    for tree in trees:
        tree.rows = list(range(first, first + len(tree.frontier)))
        first += len(tree.frontier)
