"""Logs as one JSON object a line. Secrets are kept out where lines are written: no header, query or body is logged.

What happens to a gateway goes through `logging`; one line for each request goes through `AccessLog`, which costs a few
microseconds and writes several lines at once.
"""

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import orjson

OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
MAX_TEXT_CHARS = 2_000
MAX_TRACEBACK_CHARS = 8_000
FLUSH_S = 0.2
MAX_WAITING_LINES = 20_000  # what is behind a standard error that nobody reads is dropped, and counted


class JsonLines(logging.Formatter):
    """`at`, `level`, `where`, `what`, and whatever was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": _time(record.created),
            "level": record.levelname.lower(),
            "where": record.name,
            "what": record.getMessage()[:MAX_TEXT_CHARS],
        }
        extra = {name: value for name, value in vars(record).items() if name not in OWN and name not in line}
        line.update({name: _short(value) for name, value in extra.items()})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)[-MAX_TRACEBACK_CHARS:]
        return orjson.dumps(line, default=repr).decode()


def open_log() -> None:
    """From now on everything that is logged goes to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)


class AccessLog:
    """One line for each request, written from a thread a few times a second."""

    def __init__(self, write: Callable[[bytes], object] | None = None) -> None:
        self._write = write or _to_standard_error
        self._lines: list[bytes] = []
        self._dropped = 0

    def add(self, line: dict[str, Any]) -> None:
        if len(self._lines) < MAX_WAITING_LINES:
            self._lines.append(orjson.dumps(line))
        else:
            self._dropped += 1

    async def keep(self) -> None:
        """Write what was added, until cancelled; then write the rest."""
        try:
            while True:
                await asyncio.sleep(FLUSH_S)
                if self._lines:
                    await asyncio.to_thread(self.flush)
        finally:
            self.flush()

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        dropped, self._dropped = self._dropped, 0
        if dropped:
            lines.append(orjson.dumps({"at": _time(time.time()), "what": "lines were dropped", "lines": dropped}))
        if lines:
            with contextlib.suppress(OSError):
                self._write(b"\n".join(lines) + b"\n")


def _to_standard_error(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sys.stderr.fileno(), view) :]


def _short(value: Any) -> Any:
    return value[:MAX_TEXT_CHARS] if isinstance(value, str) else value


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03}Z"
