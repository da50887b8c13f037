"""Writes tokens to a terminal as they arrive, each in the style of where it came from."""

from enum import Enum

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_OPEN, _CLOSE = "«", "»"
_TAB = "    "


class Origin(Enum):
    """Where a piece of text came from; the value is its style."""

    PROMPT = "dim"
    DRAFTED = "bold green"
    TARGET = "bright_magenta"


class Typewriter:
    """Wraps at the console's width itself: a stream of pieces knows no lines.

    With `marks` the drafted pieces stand between «» instead of, or besides, being coloured.
    """

    def __init__(self, console: Console, marks: bool) -> None:
        self._console = console
        self._marks = marks
        self._column = 0
        self._marked = False

    def write(self, piece: str, origin: Origin) -> None:
        """Write one token's text."""
        self._mark(origin is Origin.DRAFTED)
        for index, line in enumerate(piece.replace("\t", _TAB).split("\n")):
            if index:
                self._newline()
            self._put(line, origin.value)

    def end(self) -> None:
        """Close an open mark and the line."""
        self._mark(False)
        if self._column:
            self._newline()

    def legend(self) -> None:
        """One line that says what the styles mean."""
        drafted = "«marked»" if self._marks else "■"
        target = "unmarked" if self._marks else "■"
        line = Text.assemble(
            (f"{drafted} ", Origin.DRAFTED.value),
            "drafted and accepted   ",
            (f"{target} ", Origin.TARGET.value),
            "the target's own",
        )
        self._console.print(line)

    def _mark(self, drafted: bool) -> None:
        if self._marks and drafted != self._marked:
            self._put(_OPEN if drafted else _CLOSE, Origin.DRAFTED.value)
            self._marked = drafted

    def _put(self, text: str, style: str) -> None:
        width = cell_len(text)
        if self._column and self._column + width > self._console.width:
            self._newline()
        if text:
            self._column += width
            self._console.print(Text(text, style), end="", soft_wrap=True)

    def _newline(self) -> None:
        self._console.print()
        self._column = 0
