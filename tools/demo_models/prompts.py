"""Prompts of a fixed length: held-out ones to measure with, others to distil with."""

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .corpus import Document


def cut_prompts(
    tokenizer: Tokenizer, documents: Sequence[Document], count: int, length: int, seed: int
) -> Tensor:
    """`count` stretches of `length` tokens [count, length], each from a line's start inside a file.

    Files are drawn by their size. A stretch is taken only if its text encodes back to the same
    tokens, so that it stays the same prompt when it is sent as text.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([float(len(document.text)) for document in documents])
    found: list[list[int]] = []
    while len(found) < count:
        document = documents[int(torch.multinomial(sizes, 1, generator=generator))]
        offset = int(torch.randint(len(document.text), (1,), generator=generator))
        ids = _stretch(tokenizer, document.text, offset, length)
        if ids and ids not in found:
            found.append(ids)
    return torch.tensor(found)


def _stretch(tokenizer: Tokenizer, text: str, offset: int, length: int) -> list[int]:
    """`length` tokens from the first line that starts after `offset`; empty if too few."""
    start = text.find("\n", offset) + 1
    part = text[start : start + 16 * length].lstrip("\r\n")
    ids = tokenizer.encode(part).ids[:length] if start else []
    complete = len(ids) == length and tokenizer.encode(tokenizer.decode(ids)).ids == ids
    return ids if complete else []
