"""Token streams: documents to one long tensor, and the batches that training draws from it."""

from collections.abc import Iterator, Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .corpus import Document
from .tokenizer import END_OF_TEXT_ID

BLOCK_TOKENS = 1024  # the longest training sequence; shorter ones are equal parts of a block


def encode_documents(tokenizer: Tokenizer, documents: Sequence[Document]) -> list[Tensor]:
    """Each document's tokens (int64 [length]), the end-of-text token last."""
    encoded = tokenizer.encode_batch([document.text for document in documents])
    return [torch.tensor([*encoding.ids, END_OF_TEXT_ID]) for encoding in encoded]


def shuffled_blocks(documents: Sequence[Tensor], generator: torch.Generator) -> Iterator[Tensor]:
    """Blocks of BLOCK_TOKENS tokens without end.

    Every epoch has another order of documents, other block borders and another order of blocks.
    """
    while True:
        order = torch.randperm(len(documents), generator=generator).tolist()
        stream = torch.cat([documents[i] for i in order])
        start = int(torch.randint(BLOCK_TOKENS, (1,), generator=generator))
        count = (len(stream) - start) // BLOCK_TOKENS
        blocks = stream[start : start + count * BLOCK_TOKENS].view(count, BLOCK_TOKENS)
        yield from blocks[torch.randperm(count, generator=generator)]


def sequential_rows(documents: Sequence[Tensor], length: int) -> Tensor:
    """The documents joined and cut into rows without overlap, for measurements: [rows, length]."""
    stream = torch.cat(list(documents))
    return stream[: len(stream) // length * length].view(-1, length)
