"""Passes before the first request: what the target's take, and what all leave compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tandem.attention.plan import Query
from tandem.config import EngineConfig
from tandem.drafting.times import BEHIND_TEXTS, TEXT, Profile, profile
from tandem.runners.parallel_runner import Runner

PROMPTS = (16, 64, 256, 512)
"""Tokens of those that are read before the first request."""


class FirstPasses(NamedTuple):
    """Of an engine; they write into KV blocks, which are free yet."""

    config: EngineConfig
    target: Runner
    taps: Sequence[int] | None
    """Of the target's layers, as the engine's own passes have them."""
    num_blocks: int
    max_model_len: int
    compiles: bool = False
    """Whether the first one of a kind compiles kernels, or makes a graph, as on GPUs."""
    draft: Runner | None = None
    """A draft model's, which reads prompts too."""

    def times(self) -> Profile:
        """What they take."""
        config = self.config
        useful = config.max_num_seqs * (1 + config.lookahead)
        most = min(config.max_num_batched_tokens, self.num_blocks, useful)
        room = self.num_blocks // BEHIND_TEXTS * config.block_size
        return profile(self._run, most, min(TEXT, room, self.max_model_len), warm=self.compiles)

    def warm_up(self) -> None:
        """On a GPU the commonest steps are met, lest requests wait for compilers."""
        # Triton comes with GPUs alone
        from tandem.gpu.graphs import MOST_ROWS, SIZES

        for requests in (size for size in SIZES if size <= self.config.max_num_seqs):
            for each in sorted({1, 1 + self.config.lookahead}):
                blocks = requests * -(-each // self.config.block_size)
                if requests * each <= MOST_ROWS and blocks <= self.num_blocks:
                    self._run(requests, each, 0)

        room = self.num_blocks * self.config.block_size
        most = min(self.config.max_num_batched_tokens, self.max_model_len - 1, room)
        for count in (one for one in PROMPTS if one <= most):
            self._run(1, count, 0)
            if self.draft is not None and count <= self.draft.config.max_position:
                query = Query(range(self.num_blocks), 0, count)
                self.draft.forward([0] * count, [query], [count - 1])

    def _run(self, requests: int, each: int, behind: int) -> None:
        """A target's pass of so many requests with so many rows each, behind texts of so many
        tokens."""
        blocks = -(-(behind + each) // self.config.block_size)
        places = [range(one * blocks, (one + 1) * blocks) for one in range(requests)]
        queries = [Query(place, behind, each) for place in places]
        passed = self.target.forward([0] * (requests * each), queries, None, self.taps)
        passed.logits[0, 0].item()
