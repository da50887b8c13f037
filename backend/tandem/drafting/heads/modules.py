"""Several MTP modules in a row, one for each drafted token (DeepSeek-V3, arXiv 2412.19437, section
2.2).

Module k guesses the token at distance k + 2 from the hidden state it descends from. Row r of it
sees what module k - 1 made of row r - 1, and the token at r + 1; rows of the text before any such
thing see zeros. So every module reads the whole text, and a drafted token all modules but those
whose turn is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tandem.attention.plan import Query
from tandem.drafting.heads.features import FeatureGuesser
from tandem.drafting.steps import Level, depth
from tandem.models.feature_head import FeatureHead
from tandem.runners.head_runner import HeadRunner


class ModulesGuesser(FeatureGuesser):
    """A guesser around modules whose KV caches are layers of one."""

    def __init__(
        self, heads: Sequence[FeatureHead], dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(heads[0], dtype, device)
        self.heads = heads
        self.config = replace(self.head.config, num_layers=len(heads))
        self.max_depth = len(heads)
        self.runners: list[HeadRunner]
        self._made: Tensor
        """[modules - 1, slots, hidden] what each module made of each row: a text that goes on from
        cached blocks begins with what lies before them."""

    def block_bytes(self, block_size: int) -> int:
        made = (len(self.heads) - 1) * self.head.config.hidden_size * self.dtype.itemsize
        return super().block_bytes(block_size) + made * block_size

    def allocate(self, num_blocks: int, block_size: int) -> None:
        super().allocate(num_blocks, block_size)
        later = [HeadRunner(head, self.cache, i) for i, head in enumerate(self.heads) if i]
        self.runners = [self.runner, *later]
        shape = (len(self.heads) - 1, num_blocks * block_size, self.head.config.hidden_size)
        self._made = torch.zeros(shape, dtype=self.dtype, device=self.device)

    def _read(
        self,
        tokens: Sequence[int],
        hidden: Tensor,
        queries: Sequence[Query],
        rows: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        first, recurrent = self.runners[0].step(tokens, hidden, queries, rows, fused=False)
        made = [recurrent]
        for index, runner in enumerate(self.runners[1:]):
            before = self._of_rows_before(index, made[-1], queries)
            made.append(runner.step(tokens, before, queries, [])[1])
        slots = torch.tensor([self._slot(q, q.start + i) for q in queries for i in range(q.length)])
        self._made.index_copy_(1, slots.to(self.device), torch.stack(made[:-1]))
        return first, torch.stack([of_all[list(rows)] for of_all in made], 1)

    def _of_rows_before(self, module: int, made: Tensor, queries: Sequence[Query]) -> Tensor:
        """made [T, hidden], each row's in the place of the next one's."""
        before, row = made.roll(1, 0), 0
        for query in queries:
            before[row] = 0
            if query.start:
                before[row] = self._made[module, self._slot(query, query.start - 1)]
            row += query.length
        return before

    def _slot(self, query: Query, position: int) -> int:
        block, offset = divmod(position, self.cache.block_size)
        return query.blocks[block] * self.cache.block_size + offset

    @property
    def at_once(self) -> None:
        return None

    @torch.inference_mode()
    def extend(self, levels: Sequence[Level]) -> Tensor:
        """The next module guesses; those behind it read the new nodes too."""
        tokens, hidden, queries = self._level_rows(levels)
        turn = depth(levels[0])
        made = torch.zeros_like(hidden)
        logits, made[:, turn] = self.runners[turn].step(tokens, hidden[:, turn - 1], queries)
        for index in range(turn + 1, len(self.heads)):
            _, made[:, index] = self.runners[index].step(tokens, hidden[:, index - 1], queries, [])
        self._hidden = made
        return logits
