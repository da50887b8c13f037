"""Text to tokens and back, incrementally and without ever taking a character back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as HFTokenizer

from tandem.errors import CheckpointError

REPLACEMENT = "\ufffd"
CONTEXT_TOKENS = 6  # how many prompt tokens the first output token is decoded behind
MAX_PENDING_TOKENS = 8  # a UTF-8 character has 4 bytes: more undecodable tokens are just invalid


class Tokenizer:
    """A checkpoint's tokenizer.json."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.exists():
            raise CheckpointError(
                f"{path} does not exist: the checkpoint needs its tokenizer in the tokenizers "
                "library's JSON format."
            )
        try:
            self._tokenizer = HFTokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(f"{path} cannot be read ({error}): restore the file.") from None

    def encode(self, text: str) -> list[int]:
        """Token ids with the special tokens a prompt begins with."""
        return self._tokenizer.encode(text).ids

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of the text alone."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def vocabulary(self) -> dict[str, int]:
        return self._tokenizer.get_vocab(with_added_tokens=True)


class TokenDecoder:
    """Decodes a growing list of tokens, handing out only text that later tokens cannot change."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._tokens = list(prompt[-CONTEXT_TOKENS:])
        self._read = len(self._tokens)
        self._before = self._decode(self._tokens)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, self._skip_special)

    def push(self, tokens: Sequence[int]) -> str:
        """Text that the new tokens complete; a character still missing bytes is held back."""
        self._tokens += tokens
        text = self._decode(self._tokens)
        pending = len(self._tokens) - self._read
        if text.endswith(REPLACEMENT) and pending <= MAX_PENDING_TOKENS:
            return ""
        return self._take(text)

    def flush(self) -> str:
        """What is still held back; missing bytes show as U+FFFD."""
        return self._take(self._decode(self._tokens))

    def _take(self, text: str) -> str:
        new = text[len(self._before) :]
        del self._tokens[: max(0, min(self._read, len(self._tokens) - CONTEXT_TOKENS))]
        self._read = len(self._tokens)
        self._before = self._decode(self._tokens)
        return new


class StopFinder:
    """Watches text for stop strings and keeps back whatever may be the beginning of one."""

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        self._stops = stops
        self._include = include
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Text that is safe to show, and whether a stop string was found."""
        self._held += text
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, stop = min(found)
            shown = self._held[: at + len(stop) if self._include else at]
            self._held = ""
            return shown, True
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown, False

    def flush(self) -> str:
        """What was kept back, once nothing more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)
