"""A draft with another tokenizer: it proposes the tokens that both vocabularies hold (token-level
intersection, Timor et al. 2025, arXiv 2502.05202).

The draft reads the target's text token by token, each as its own token of the same spelling; where
it has none, as the last of the tokens it would spell it with. Its distribution is cut to the shared
tokens before anything is drawn, so that q is what tokens are drawn from and verification is as
ever. A draft whose tokenizer is the target's, but padded to another size, is the same case; where
its tokens are the target's first ones, it may draw whole chains by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tandem.errors import ConfigError
from tandem.models.config import ModelConfig
from tandem.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

LEAST_OVERLAP = 0.1  # of the target's tokens; with fewer a draft is hardly ever right


class Translation(NamedTuple):
    """Between the target's vocabulary of V tokens and the draft's."""

    read_as: Tensor
    """[V] int64: the draft's token that stands for each of the target's."""
    ours: Tensor
    """[S] int64: the target's ids of the shared tokens, ascending."""
    theirs: Tensor
    """[S] int64: the draft's ids of the same tokens."""
    same_ids: bool
    """The draft's tokens are the target's first ones, all of them shared."""

    def __str__(self) -> str:
        return f"the draft knows {len(self.ours)} of the target's {len(self.read_as)} tokens"

    def to(self, device: torch.device) -> Translation:
        """With the indices of logits where the logits are."""
        return self._replace(ours=self.ours.to(device), theirs=self.theirs.to(device))

    def tokens(self, tokens: Sequence[int]) -> list[int]:
        """The target's tokens as the draft reads them."""
        found: list[int] = self.read_as[torch.tensor(tokens, dtype=torch.int64)].tolist()
        return found

    def logits(self, logits: Tensor) -> Tensor:
        """[R, draft's vocabulary] to [R, V]; what is not shared cannot be drawn."""
        found = logits.new_full((logits.shape[0], len(self.read_as)), -torch.inf)
        return found.index_copy_(1, self.ours, logits.index_select(1, self.theirs))


class Vocabulary(NamedTuple):
    """A model's tokens."""

    name: str
    """For messages."""
    tokenizer: Tokenizer
    size: int
    """Of the model, which may be larger than the tokenizer's."""
    ends: tuple[int, ...]
    """Tokens that end a text."""

    @classmethod
    def of(cls, name: str, tokenizer: Tokenizer, model: ModelConfig) -> Vocabulary:
        """That of a model with this tokenizer."""
        return cls(name, tokenizer, model.vocab_size, model.eos_ids)

    def spellings(self) -> dict[int, bytes]:
        """What each token stands for."""
        found = self.tokenizer.spellings()
        return {index: found[index] for index in sorted(found) if index < self.size}


def translate(target: Vocabulary, draft: Vocabulary) -> Translation | None:
    """None where ids mean the same. Raises `ConfigError` where too little is shared."""
    ours, theirs = target.spellings(), draft.spellings()
    if target.size == draft.size and ours == theirs:
        return None
    ids = {spelling: index for index, spelling in reversed(theirs.items())}
    shared = {
        index: index if theirs.get(index) == spelling else ids[spelling]
        for index, spelling in ours.items()
        if spelling in ids
    }
    shared |= _ends(target, draft, shared)
    if len(shared) < LEAST_OVERLAP * len(ours):
        raise ConfigError(
            f"{draft.name} shares {len(shared)} of the {len(ours)} tokens of {target.name}: use a "
            f"draft that shares at least {LEAST_OVERLAP:.0%} of them."
        )
    read_as = torch.zeros(target.size, dtype=torch.int64)
    for index, spelling in ours.items():
        if index not in shared:
            read_as[index] = _last_piece(draft, spelling)
    for index, theirs_too in shared.items():
        read_as[index] = theirs_too
    first = {index: spelling for index, spelling in ours.items() if index < draft.size}
    same_ids = draft.size <= target.size and theirs == first
    known = torch.arange(draft.size) if same_ids else torch.tensor(sorted(shared))
    if same_ids:
        read_as[known] = known
    logger.info(
        "%s shares %d of the %d tokens of %s (%.0f %%) and proposes no others.",
        *(draft.name, len(shared), len(ours), target.name, 100 * len(shared) / len(ours)),
    )
    return Translation(read_as, known, read_as[known], same_ids)


def _ends(target: Vocabulary, draft: Vocabulary, shared: Mapping[int, int]) -> dict[int, int]:
    """Ends of text that have no namesake, in the order in which the models list them."""
    ours = [end for end in target.ends if end < target.size and end not in shared]
    theirs = [end for end in draft.ends if end < draft.size and end not in shared.values()]
    last = len(theirs) - 1
    return {end: theirs[min(place, last)] for place, end in enumerate(ours) if theirs}


def _last_piece(draft: Vocabulary, spelling: bytes) -> int:
    pieces = draft.tokenizer.encode_plain(spelling.decode(errors="ignore"))
    return pieces[-1] if pieces and pieces[-1] < draft.size else 0
