"""Suffix decoding (Oliaro et al. 2024, arXiv 2411.04975), by its authors' library.

Suffix trees over each request's own text and over the answers of past requests say what followed
where a text ended like this, how often, and so how far to guess: the longer the match, the longer
the draft. Past answers leave in the order in which they came.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from arctic_inference.suffix_decoding import SuffixDecodingCache

from tandem.config import EngineConfig
from tandem.drafting import Draft, Proposer
from tandem.request import Notes, Request
from tandem.scheduler import Decode


@dataclass(slots=True)
class _Text:
    """A running request's."""

    key: int
    """Its name in the trees."""
    known: int
    """Tokens of it that the trees hold."""


class SuffixProposer(Proposer):
    """Deterministic proposals, chains or trees, from what was written before."""

    def __init__(self, config: EngineConfig) -> None:
        self.as_tree = config.speculative_tree is not None
        self.depth = config.suffix_decoding_max_tree_depth
        self.factor = config.suffix_decoding_max_spec_factor
        self.least = config.suffix_decoding_min_token_prob
        self.cache = SuffixDecodingCache(self.depth, config.suffix_decoding_max_cached_requests)
        self._next_key = 0
        self._texts = Notes[_Text]()

    def propose(self, decodes: Sequence[Decode], alone: bool = False) -> Draft:
        tokens: list[list[int]] = []
        parents: list[list[int]] = []
        for request, lookahead in decodes:
            text = self._learn(request)
            own, origins = self._guess(request, text, lookahead) if lookahead else ([], [])
            tokens.append(own)
            parents.append([origin + 1 for origin in origins])
        return Draft(tokens, parents if self.as_tree else None)

    def finished(self, request: Request) -> None:
        """The last tokens of an answer are learnt here, for nothing is proposed behind them, or all
        of one for which nothing was: unless it is but one token, from which nothing follows."""
        if request.num_output > 1:
            self._learn(request)

    def _guess(self, request: Request, text: _Text, lookahead: int) -> tuple[list[int], list[int]]:
        draft = self.cache.speculate(
            text.key,
            request.tokens[-self.depth :],
            max_spec_tokens=lookahead,
            max_spec_factor=self.factor,
            min_token_prob=self.least,
            use_tree_spec=self.as_tree,
        )
        return list(draft.token_ids), list(draft.parents)

    def _learn(self, request: Request) -> _Text:
        """Shows the trees what is new of the text; a request that ends is forgotten, its answer is
        not."""
        text = self._texts.get(request)
        if text is None:
            text = self._texts[request] = _Text(self._next_key, request.num_prompt)
            self._next_key += 1
            self.cache.start_request(text.key, list(request.tokens[: request.num_prompt]))
            weakref.finalize(request, self.cache.stop_request, text.key)
        new = request.tokens[text.known :]
        if new:
            self.cache.add_active_response(text.key, new)
            text.known += len(new)
        return text
