"""Reads in Triton's log why a server did not start or a model did not load."""

import os
import re
from pathlib import Path
from typing import Final

from tandem.standstill import SAID

# E1121 02:13:19.331901 5405 model_lifecycle.cc:642] "failed to load …"   (quotes since 2.50)
_ERROR_LINE: Final = re.compile(r'^E\d{4} [\d:.]+ +\d+ [\w.]+:\d+\] "?(?P<text>.*?)"?$', re.M)
# The last words of a server that gives up: "error: creating server: Internal - …"
_LAST_WORDS: Final = re.compile(r"^error: (?P<text>.+)$", re.M)
# What it says of an argument that it does not take, before all those that it does.
_BAD_OPTION: Final = re.compile(r"^(?P<text>.*\S.*)\n+Usage: tritonserver", re.M)
# A Python model's failure is its exception and, after an empty line, the place it came from.
_TRACE: Final = re.compile(r"(?:\\n|\n)+At:.*", re.S)
_LOAD_FAILURE: Final = re.compile(
    r"failed to load '(?P<model>[^']+)' version \d+: \w+(?: \w+)?: (?P<reason>.+)", re.S
)
# A config.pbtxt that is no ModelConfig; Triton's own error repeats only the file's name.
_PROTOBUF: Final = re.compile(
    r"Error parsing text-format [\w.]+: (?P<line>\d+):\d+: (?P<text>.+)$", re.M
)
# What Triton says of a model's process that stood still, and what we say.
_NOT_HEALTHY: Final = "is not healthy"
_STANDSTILL: Final = re.compile(rf"^tandem: (?P<text>.*{SAID}.*)$", re.M)
# Every server without a GPU says this.
_HARMLESS: Final = ("CudaDriverHelper has not been initialized",)
# What an error must say to be the cause rather than a consequence, most telling first.
_CAUSES: Final = ("failed to load '", "failed to poll", "failed to start", "Poll failed", "failed")


def failure_reason(log: str) -> str | None:
    """The cause of a failed start, as one line, or None when the log tells none."""
    errors = [_one_line(match["text"]) for match in _ERROR_LINE.finditer(log)]
    errors = [text for text in errors if not text.startswith(_HARMLESS)]
    for cause in _CAUSES:
        for text in errors:
            if cause in text:
                stood_still = _STANDSTILL.findall(log) if _NOT_HEALTHY in text else []
                return stood_still[-1] if stood_still else _plain(text) + _syntax_error(log)
    if last_words := _LAST_WORDS.findall(log) or _BAD_OPTION.findall(log):
        return _plain(_one_line(last_words[-1]))
    return errors[-1] if errors else None


def _one_line(text: str) -> str:
    return " ".join(_TRACE.sub("", text).replace("\\n", " ").split())


def _plain(text: str) -> str:
    if failure := _LOAD_FAILURE.search(text):
        return f"model '{failure['model']}' failed to load: {failure['reason']}"
    return text


def _syntax_error(log: str) -> str:
    error = _PROTOBUF.search(log)
    return f", line {error['line']}: {error['text']}" if error else ""


def read_log(path: Path, begin: int = 0) -> str:
    """What it has from this byte on, or all where somebody has emptied it meanwhile; nothing where
    it is gone."""
    if not path.exists():
        return ""
    with path.open("rb") as log:
        log.seek(begin if begin <= path.stat().st_size else 0)
        return log.read().decode(errors="replace")


class LogFollower:
    """Hands out the lines that were added to a log since the last look."""

    def __init__(self, path: Path, begin: int = 0) -> None:
        # Held open: somebody may tidy up the folder for temporary files.
        self._log = path.open("rb")
        self._log.seek(begin)
        self._rest = b""

    def new_lines(self) -> list[str]:
        if self._log.tell() > os.fstat(self._log.fileno()).st_size:  # somebody has emptied it
            self._log.seek(0)
            self._rest = b""
        # A line that is still being written waits for its end.
        *whole, self._rest = (self._rest + self._log.read()).split(b"\n")
        return [line.decode(errors="replace") for line in whole]
