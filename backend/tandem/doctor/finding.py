"""What a check says: one line."""

from enum import IntEnum
from typing import NamedTuple


class Level(IntEnum):
    OK = 0
    WARNING = 1
    FAILURE = 2


class Finding(NamedTuple):
    level: Level
    subject: str
    text: str
    remedy: str = ""


def ok(subject: str, text: str) -> Finding:
    return Finding(Level.OK, subject, text)


def warning(subject: str, text: str, remedy: str) -> Finding:
    return Finding(Level.WARNING, subject, text, remedy)


def failure(subject: str, text: str, remedy: str) -> Finding:
    return Finding(Level.FAILURE, subject, text, remedy)
