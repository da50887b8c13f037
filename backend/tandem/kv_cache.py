"""One pool of KV blocks for both runners, and the prefix cache over it.

A block is logical: the same number addresses the target's tensor and the draft's, so a request
has one block table and is admitted, preempted and freed once for both.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import NamedTuple

from tandem.free_memory import free_memory
from tandem.request import Request

ROOT_KEY = 0  # key of the empty prefix
CPU_KV_SHARE = 0.2  # of the memory that is free, where kv_cache_memory says nothing
CPU_KV_MOST = 4 << 30


def cpu_kv_memory(ranks: int) -> int:
    """Bytes of KV cache for each of a CPU engine's ranks, where the configuration names none."""
    return min(CPU_KV_MOST, int(free_memory() * CPU_KV_SHARE)) // ranks


class CachedBlock(NamedTuple):
    """A full block whose content is known. Its key stands for the whole text up to its end."""

    block: int
    key: int


class PoolUsage(NamedTuple):
    """Blocks by state; they always add up to `total`."""

    free: int
    cached: int
    used: int
    total: int


class BlockManager:
    """Hands out blocks, keeps finished prefixes for reuse, evicts the least recently used."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool,
        reads_ahead: bool = False,
    ) -> None:
        """reads_ahead: some KV depends on the token behind it too, so a block's content includes
        the first token of the next one."""
        self.block_size = block_size
        self.reads_ahead = reads_ahead
        self.num_blocks = num_blocks
        self.prefix_caching = enable_prefix_caching
        self._free = list(range(num_blocks - 1, -1, -1))  # popped from the end: low ids first
        self._references = [0] * num_blocks
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached, unused, oldest first
        self._index: dict[tuple[int, tuple[int, ...]], CachedBlock] = {}
        self._content: dict[int, tuple[int, tuple[int, ...]]] = {}  # block -> its index entry
        self._drafted: set[int] = set()  # cached blocks which hold the draft's KV too
        self._keys = itertools.count(ROOT_KEY + 1)

    # -- admission -----------------------------------------------------------------------------

    def adopt_prefix(self, request: Request, keeps_states: bool = True) -> int:
        """Gives a request without blocks the longest cached prefix; returns its tokens.

        At least the last token is left to compute, since its logits are needed. keeps_states: a
        head is to draft for it, which needs KV of its own for all of it.
        """
        if not self.prefix_caching:
            return 0
        for hit in self._cached_prefix(request):
            if self.reads_ahead and hit.block not in self._drafted:
                if keeps_states:
                    break
                request.states_lost = True
            self._use(hit.block)
            request.blocks.append(hit.block)
            request.block_keys.append(hit.key)
        request.computed = len(request.blocks) * self.block_size
        with_draft = itertools.takewhile(self._drafted.__contains__, request.blocks)
        request.draft_computed = sum(1 for _ in with_draft) * self.block_size
        return request.computed

    def _cached_prefix(self, request: Request) -> list[CachedBlock]:
        hits: list[CachedBlock] = []
        for index in range((len(request.tokens) - 1) // self.block_size):
            parent = hits[-1].key if hits else ROOT_KEY
            hit = self._index.get((parent, self._tokens_of(request, index)))
            if hit is None:
                break
            hits.append(hit)
        return hits

    def available(self) -> int:
        """Blocks that can be handed out now."""
        return len(self._free) + len(self._idle)

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """Extends the block table to cover `num_tokens` slots; False, unchanged, if it can't."""
        missing = -(-num_tokens // self.block_size) - len(request.blocks)
        if missing <= 0:
            return True
        if missing > self.available():
            return False
        for _ in range(missing):
            request.blocks.append(self._take())
        return True

    # -- content -------------------------------------------------------------------------------

    def register(self, request: Request) -> None:
        """Makes the request's newly filled blocks findable as a prefix for others."""
        if not self.prefix_caching:
            return
        known = request.computed
        if self.reads_ahead:  # a head's KV belongs to the block, and depends on the next token
            known = min(known, len(request.tokens) - 1)
            known = known if request.states_lost else min(known, request.draft_computed)
        full = known // self.block_size
        if len(request.block_keys) == full:
            return
        while len(request.block_keys) < full:
            index = len(request.block_keys)
            parent = request.block_keys[-1] if index else ROOT_KEY
            content = (parent, self._tokens_of(request, index))
            cached = self._index.get(content)
            if cached is None:
                cached = self._know(content, request.blocks[index], next(self._keys))
            elif self._holds_more(request, index, cached.block):
                self._forget(cached.block)
                cached = self._know(content, request.blocks[index], cached.key)
            request.block_keys.append(cached.key)
        self._mark_drafted(request)

    def _know(self, content: tuple[int, tuple[int, ...]], block: int, key: int) -> CachedBlock:
        self._content[block] = content
        cached = self._index[content] = CachedBlock(block, key)
        return cached

    def _holds_more(self, request: Request, index: int, block: int) -> bool:
        """Whether the request's block holds a head's KV, which a cached one of the same text does
        not."""
        own = (index + 1) * self.block_size <= request.draft_computed
        return self.reads_ahead and own and block not in self._drafted

    def _forget(self, block: int) -> None:
        """It is not found any more."""
        del self._index[self._content.pop(block)]
        if block in self._idle:
            del self._idle[block]
            self._free.append(block)

    def release(self, request: Request) -> None:
        """Takes all blocks back. Known ones stay cached, the deepest evicted first."""
        self._mark_drafted(request)
        for block in reversed(request.blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._content:
                    self._idle[block] = None
                else:
                    self._free.append(block)
        request.blocks.clear()
        request.block_keys.clear()
        request.computed = request.draft_computed = 0
        request.states_lost = False

    def _mark_drafted(self, request: Request) -> None:
        for block in request.blocks[: request.draft_computed // self.block_size]:
            if block in self._content:
                self._drafted.add(block)

    def _tokens_of(self, request: Request, index: int) -> tuple[int, ...]:
        end = (index + 1) * self.block_size + self.reads_ahead
        return tuple(request.tokens[index * self.block_size : end])

    # -- blocks --------------------------------------------------------------------------------

    def _use(self, block: int) -> None:
        self._references[block] += 1
        self._idle.pop(block, None)

    def _take(self) -> int:
        block = self._free.pop() if self._free else self._evict()
        self._references[block] = 1
        return block

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        del self._index[self._content.pop(block)]
        self._drafted.discard(block)
        return block

    # -- integrity -----------------------------------------------------------------------------

    def usage(self) -> PoolUsage:
        """Blocks by state."""
        used = self.num_blocks - len(self._free) - len(self._idle)
        return PoolUsage(len(self._free), len(self._idle), used, self.num_blocks)

    def check_integrity(self, idle: bool) -> None:
        """Asserts that no block is lost or held twice; with `idle`, that none is in use."""
        usage = self.usage()
        held = sum(count > 0 for count in self._references)
        assert held == usage.used, f"blocks are lost: {held} are held of {usage}"
        assert not set(self._free) & set(self._idle), "a block is both free and cached"
        assert set(self._idle) <= set(self._content), "an idle block has no known content"
        assert len(self._index) == len(self._content), "index and contents disagree"
        assert self._drafted <= set(self._content), "a draft's KV is in blocks of unknown content"
        texts = {len(tokens) for _, tokens in self._content.values()}
        assert texts <= {self.block_size + self.reads_ahead}, "not all of a cached block is text"
        if idle:
            assert usage.used == 0, f"blocks are in use while no request runs: {usage}"
