"""Text to tokens and back, incrementally and without ever taking a character back."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as HFTokenizer

from tandem.errors import CheckpointError, InvalidRequestError
from tandem.request import Prompt

REPLACEMENT = "\ufffd"
CONTEXT_TOKENS = 6  # how many prompt tokens, at least, the first output token is decoded behind
UNFINISHED_TOKENS = 3  # a character has at most 4 bytes, so 3 tokens may want for the fourth


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
            text = path.read_text(encoding="utf-8")
            self._tokenizer = HFTokenizer.from_str(text)
            self._tokenizer.no_truncation()  # which its file may ask for, as of training
            self._tokenizer.no_padding()
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(f"{path} cannot be read ({error}): restore the file.") from None
        spec = json.loads(text)
        self.joins = (spec.get("decoder") or {}).get("type") == "ByteLevel"
        """Whether tokens stand for the same bytes wherever they are, so that texts that end with a
        whole character can be put behind one another."""
        self._longest = _longest_token(spec) if self.joins else None
        self._alone: tuple[dict[int, str], dict[int, str]] = {}, {}

    def encode(self, text: str) -> list[int]:
        """Token ids with the special tokens a prompt begins with."""
        return self._ids(text, True)

    def prompt(self, prompt: Prompt, most: int) -> list[int]:
        """Token ids of a prompt, whichever it is. Raises `InvalidRequestError` for a text that
        `most` tokens cannot hold, before it is taken apart: that takes seconds."""
        if not isinstance(prompt, str):
            return list(prompt)
        if self._longest is not None and len(prompt) > most * self._longest:
            raise InvalidRequestError(
                f"The prompt has {len(prompt)} characters, more than {most} tokens can stand for, "
                "which is what prompt and output together may have: shorten the prompt or raise "
                "max_model_len."
            )
        return self.encode(prompt)

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of the text alone."""
        return self._ids(text, False)

    def _ids(self, text: str, special: bool) -> list[int]:
        try:  # `encode` alone would hold the interpreter's lock, for seconds with long texts
            return self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids
        except TypeError:
            raise InvalidRequestError(
                "The prompt is not valid Unicode: it holds half a surrogate pair; send whole "
                "characters."
            ) from None
        except BaseException as error:  # as what the library panics with is
            raise InvalidRequestError(
                f"The prompt cannot be tokenized ({type(error).__name__}): send another text."
            ) from error

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def alone(self, token: int, skip_special_tokens: bool) -> str:
        """The text of one token, from the second time on without the library: REPLACEMENT stands
        for bytes that are no whole character."""
        known = self._alone[skip_special_tokens]
        text = known.get(token)
        if text is None:
            text = known[token] = self.decode([token], skip_special_tokens)
        return text

    def spellings(self) -> dict[int, bytes]:
        """What each token stands for, as UTF-8: comparable between tokenizers. A special token,
        which stands for no text, is spelt by its name behind a zero byte."""
        added = self._tokenizer.get_added_tokens_decoder()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        byte_level = '"ByteLevel"' in self._tokenizer.to_str()
        found: dict[int, bytes] = {}
        for token, index in vocabulary.items():
            if index in added:
                found[index] = b"\0" * added[index].special + token.encode()
            elif byte_level:
                found[index] = _byte_level(token)
            else:
                found[index] = _sentence_piece(token, vocabulary)
        return found


def _longest_token(spec: dict[str, Any]) -> int | None:
    """Most characters of a text that one token of a byte-level tokenizer stands for, or more; None
    where characters may go without a token."""
    vocabulary, added = dict(spec["model"]["vocab"]), spec.get("added_tokens", [])
    changed = spec.get("normalizer") is not None
    drops = '"Removed"' in json.dumps(spec.get("pre_tokenizer"))
    strips = any(token["lstrip"] or token["rstrip"] for token in added)
    if changed or drops or strips or not set(BYTES) <= set(vocabulary):
        return None
    return max(map(len, [*vocabulary, *(token["content"] for token in added)]))


def _byte_level(token: str) -> bytes:
    """GPT-2's alphabet: printable bytes are themselves, the others follow from 256 on."""
    return b"".join(bytes([BYTES[char]]) if char in BYTES else char.encode() for char in token)


def _sentence_piece(token: str, vocabulary: Container[str]) -> bytes:
    """Spaces are written as a low line, bytes outside any token as <0x0A>. The byte of a character
    that has a token of its own is never written: it keeps its name."""
    if re.fullmatch("<0x[0-9A-F]{2}>", token):
        byte = bytes([int(token[3:5], 16)])
        own = byte.decode("latin-1").replace(" ", "\u2581")
        return b"\0" + token.encode() if byte < b"\x80" and own in vocabulary else byte
    return token.replace("\u2581", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


BYTES = _byte_alphabet()


class TokenDecoder:
    """Decodes a growing list of tokens, handing out only text that later tokens cannot change."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._tokens = self._context(prompt)
        self._read = len(self._tokens)
        self._before = self._decode(self._tokens)

    def _context(self, prompt: Sequence[int]) -> list[int]:
        """The prompt's end, as much of it as shows something and starts with a whole character."""
        count = CONTEXT_TOKENS
        while count < len(prompt) and self._decode(prompt[-count:])[:1] in ("", REPLACEMENT):
            count *= 2
        return list(prompt[-count:])

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, self._skip_special)

    def push(self, tokens: Sequence[int]) -> str:
        """Text that the new tokens complete; a character still missing bytes is held back."""
        if self._tokenizer.joins and not self._tokens:
            text = "".join([self._tokenizer.alone(one, self._skip_special) for one in tokens])
            if REPLACEMENT not in text:
                return text
        self._tokens += tokens
        end = max(self._read, len(self._tokens) - UNFINISHED_TOKENS)
        for whole in range(len(self._tokens), end, -1):
            text = self._decode(self._tokens[:whole])
            if not text.endswith(REPLACEMENT):
                return self._take(whole, text)
        # What is not yet a character by now never becomes one.
        return self._take(end, self._decode(self._tokens[:end]))

    def flush(self) -> str:
        """What is still held back; missing bytes show as U+FFFD."""
        return self._take(len(self._tokens), self._decode(self._tokens))

    def _take(self, end: int, text: str) -> str:
        """Hands out what `text`, the tokens up to `end`, adds to the text shown before."""
        new = text[len(self._before) :]
        if self._tokenizer.joins and not text.endswith(REPLACEMENT):
            del self._tokens[:end]
            self._read, self._before = 0, ""
            return new
        # Text just shown is the context of what comes: it begins with a whole character.
        past = slice(self._read) if new else slice(self._read, end)
        del self._tokens[past]
        self._read = end - len(range(end)[past])
        self._before = self._decode(self._tokens[: self._read])
        return new


class StopFinder:
    """Watches text for stop strings and keeps back whatever may be the beginning of one."""

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        self._stops = stops
        self._include = include
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Text that is safe to show, and whether a stop string was found."""
        if not self._stops:
            return text, False
        self._held += text
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            # The first to be complete, so that it does not matter in which pieces text arrives.
            at, stop = min(found, key=lambda hit: (hit[0] + len(hit[1]), hit[0]))
            shown = self._held[: at + len(stop) if self._include else at]
            self._held = ""
            return shown, True
        keep = max(_overlap(self._held, stop) for stop in self._stops)
        shown, self._held = (
            self._held[: len(self._held) - keep],
            self._held[len(self._held) - keep :],
        )
        return shown, False

    def flush(self) -> str:
        """What was kept back, once nothing more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)
