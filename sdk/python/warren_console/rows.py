"""Rows of a timeline, and how a terminal shows them: a clock, a mark, what happened, and what came of it. No I/O.

Every text of a row may come from a guest. It is cleaned when it is laid out, and its further lines are indented:
nothing that a guest says can look like a row of its own.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from warren_console import text

GAP = "  "
NARROW = 60  # columns; with fewer there is no room for the clock
LEAST = 8  # columns of a text, however narrow the terminal is
MAX_MS = 1 << 47  # some thousand years
MOST = 400  # columns of what is told in one line, however wide it is
STYLES = {
    "": "",
    "dim": "\x1b[2m",
    "bold": "\x1b[1m",
    "red": "\x1b[31m",
    "green": "\x1b[32m",
    "yellow": "\x1b[33m",
    "blue": "\x1b[34m",
    "magenta": "\x1b[35m",
    "cyan": "\x1b[36m",
}
OFF = "\x1b[0m"
Paint = Callable[[str, str], str]  # a text that was cleaned, and the name of a style


@dataclass(frozen=True)
class Row:
    """Something that happened. Prose may have many lines; all else is told in one, with its result behind it."""

    at_ms: int | None
    mark: str
    text: str
    style: str = ""
    mark_style: str = ""
    result: str = ""
    result_style: str = "dim"
    prose_lines: int = 0  # how many of them are shown, at most; 0: it is no prose


def coloured(text: str, style: str) -> str:
    return f"{STYLES[style]}{text}{OFF}" if STYLES.get(style) and text else text


def plain(text: str, style: str) -> str:
    return text


def laid_out(row: Row, columns: int, paint: Paint = plain) -> list[str]:
    """The row as lines of at most so many columns."""
    clock = _clock(row.at_ms) + GAP if columns >= NARROW and row.at_ms is not None else ""
    indent = len(clock) + len(row.mark) + 1
    room = max(LEAST, columns - indent)
    if row.prose_lines:
        first, *others = [paint(line, row.style) for line in _prose(row, room)]
    else:
        first, others = _told(row, room, paint), []
    return [
        f"{paint(clock, 'dim')}{paint(row.mark, row.mark_style)} {first}",
        *(" " * indent + line for line in others),
    ]


def _clock(at_ms: int | None) -> str:
    return "" if at_ms is None else time.strftime("%H:%M:%S", time.localtime(min(max(0, at_ms), MAX_MS) / 1000))


def _prose(row: Row, room: int) -> list[str]:
    lines = list(_wrapped(row.text.strip().split("\n"), room))
    return text.fitted(lines, row.prose_lines) or [""]


def _wrapped(lines: Sequence[str], room: int) -> Iterator[str]:
    for line in lines:
        cleaned = text.clean(line.expandtabs(4)).rstrip()
        inner = cleaned.lstrip(" ")
        indent = " " * min(len(cleaned) - len(inner), room // 2)
        for part in text.wrapped(inner, room - len(indent)):
            yield indent + part


def _told(row: Row, room: int, paint: Paint) -> str:
    """The result has the room that the text leaves, and half of it in any case."""
    room = min(room, MOST)
    said, result = _one_line(row.text), _one_line(row.result)
    if not result:
        return paint(text.cut(said, room), row.style)
    result = text.cut(result, max(room // 2, room - text.width(said) - len(GAP)))
    said = text.cut(said, max(LEAST, room - text.width(result) - len(GAP)))
    left = room - text.width(said) - len(GAP)
    return paint(said, row.style) + GAP + paint(text.cut(result, max(0, left)), row.result_style)


def _one_line(said: str) -> str:
    """Without the blanks that lines and indents become."""
    return " ".join(text.clean(said).split())
