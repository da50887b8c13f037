"""Streamed pieces on a terminal: marks, styles, lines."""

import io

from rich.console import Console

from tandem_client.typewriter import Origin, Typewriter


def written(pieces, *, marks, width=20, **console):
    out = io.StringIO()
    writer = Typewriter(Console(file=out, width=width, **console), marks)
    for text, origin in pieces:
        writer.write(text, origin)
    writer.end()
    return out.getvalue()


def test_marks_enclose_runs_of_drafted_pieces():
    pieces = [
        ("def", Origin.TARGET),
        (" f", Origin.DRAFTED),
        ("(x", Origin.DRAFTED),
        (")", Origin.TARGET),
        (":", Origin.DRAFTED),
    ]
    assert written(pieces, marks=True) == "def« f(x»)«:»\n"


def test_styles_tell_the_two_models_apart():
    pieces = [("a", Origin.DRAFTED), ("b", Origin.TARGET)]
    colours = {"color_system": "standard", "force_terminal": True}
    assert written(pieces, marks=False, **colours) == "\x1b[1;32ma\x1b[0m\x1b[95mb\x1b[0m\n"


def test_lines_break_at_newlines_and_at_the_width():
    pieces = [("ab", Origin.TARGET), ("\n  c", Origin.TARGET), ("defg", Origin.TARGET)]
    assert written(pieces, marks=False, width=6) == "ab\n  c\ndefg\n"


def test_markup_in_a_token_is_text():
    assert written([("[bold]", Origin.TARGET)], marks=False) == "[bold]\n"
