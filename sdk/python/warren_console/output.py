"""What a command prints: tables and facts for people, JSON for programs. Everything for people is cleaned first."""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from warren_console import rows, text

GAP = "  "
RIGHT = ">"  # a title that starts with it has its column aligned to the right
NOT_ON_A_TERMINAL = 1 << 30


class Output:
    """Standard output, as this command was asked to use it."""

    def __init__(self, stream: TextIO, *, as_json: bool) -> None:
        self._stream = stream
        self.as_json = as_json
        self.is_terminal = stream.isatty()
        self._has_colours = self.is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"

    @property
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    @property
    def columns(self) -> int:
        return shutil.get_terminal_size().columns if self.is_terminal else NOT_ON_A_TERMINAL

    @property
    def rows(self) -> int:
        return shutil.get_terminal_size().lines if self.is_terminal else NOT_ON_A_TERMINAL

    def line(self, line: str = "") -> None:
        self._stream.write(text.clean(line) + "\n")
        self._stream.flush()

    def raw(self, data: str) -> None:
        """As it is: only for what we made ourselves."""
        self._stream.write(data)
        self._stream.flush()

    def json(self, value: object) -> None:
        """Escaped to ASCII, so that it is harmless on a terminal too."""
        self._stream.write(json.dumps(value, indent=2) + "\n")
        self._stream.flush()

    def json_line(self, value: object) -> None:
        self._stream.write(json.dumps(value) + "\n")
        self._stream.flush()

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        for line in self.table_lines(titles, rows):
            self._stream.write(line + "\n")

    def table_lines(self, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
        """Aligned columns. Only the last one gives way when the terminal is too narrow, then the line is cut."""
        cells = [[text.clean(cell) for cell in row] for row in rows]
        names = [title.removeprefix(RIGHT) for title in titles]
        widths = [max(map(text.width, column)) for column in zip(names, *cells, strict=True)]
        is_right = [title.startswith(RIGHT) for title in titles]
        lines = [self._row(row, widths, is_right) for row in [names, *cells]]
        return [self.bold(lines[0]), *lines[1:]]

    def _row(self, row: Sequence[str], widths: Sequence[int], is_right: Sequence[bool]) -> str:
        padded = []
        for cell, columns, right in zip(row, widths, is_right, strict=True):
            space = " " * (columns - text.width(cell))
            padded.append(space + cell if right else cell + space)
        return text.cut(GAP.join(padded).rstrip(), self.columns)

    def bold(self, line: str) -> str:
        """A title, where there are colours. Only for one that was cleaned."""
        return f"\x1b[1m{line}\x1b[0m" if self._has_colours else line

    def loud(self, line: str) -> str:
        """A line that is to be seen among others, where there are colours. Only for one that was cleaned."""
        return f"\x1b[31m{line}\x1b[0m" if self._has_colours else line

    def painted(self, line: str, style: str) -> str:
        """A part of a line, where there are colours. Only for one that was cleaned."""
        return rows.coloured(line, style) if self._has_colours else line

    def facts(self, facts: Mapping[str, object]) -> None:
        """A name and a value a line. The names are cleaned too: those of metadata are a caller's."""
        rows = [(text.clean(name), text.clean(value)) for name, value in facts.items()]
        columns = max(text.width(name) for name, _ in rows)
        for name, value in rows:
            self._stream.write((name + " " * (columns - text.width(name)) + GAP + value).rstrip() + "\n")


def say(program: str, message: str) -> None:
    """A line for the person, beside the output."""
    sys.stderr.write(f"{program}: {text.clean(message)}\n")
    sys.stderr.flush()


def write_all(descriptor: int, data: bytes) -> None:
    """All of it, past every buffer, or `BrokenPipeError`."""
    while data:
        data = data[os.write(descriptor, data) :]


def moment(at_ms: Any) -> str:
    """A point of time for people, in their own time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000)) if at_ms is not None else "-"
