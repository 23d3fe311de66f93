"""Logs as one JSON object a line, for a machine to read and for `jq` to show.

A line has `at`, `level`, `where`, `what`, the ids that it belongs to, and whatever was given as `extra`. It is never
longer than `MAX_LINE_BYTES`, whatever was logged, and logging never raises. What looks like a secret is not shown.
"""

import contextlib
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import PurePath
from typing import Any

import orjson

OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
MAX_TEXT_CHARS = 2_000  # of one value
MAX_TRACEBACK_CHARS = 8_000
MAX_FIELDS = 32
MAX_DEPTH = 4
MAX_ITEMS = 32  # of a list or an object in a value
MAX_LINE_BYTES = 16_384
MAX_INT = 1 << 53  # beyond it, programs that read JSON lose digits

# Names whose values are nobody's business, and values that are secrets whatever their name.
SECRET_NAME = re.compile(
    r"(?i)(^|_|-)(env|secrets?|tokens?|passwords?|passwd|authorization|cookies?|credentials?|(api|private)[_-]?keys?)$"
)
SECRET_TEXT = re.compile(
    r"(?i)(?P<scheme>\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}"
    r"|(?P<url>://[^/\s:@]*:)[^/\s@]+(?=@)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
HIDDEN = "(hidden)"

_ids: ContextVar[Mapping[str, str]] = ContextVar("ids", default={})  # noqa: B039 — never changed, only replaced


@contextlib.contextmanager
def ids(*, sandbox: str | None = None, task: str | None = None, request: str | None = None) -> Iterator[None]:
    """What is logged during the block carries these ids, also from tasks and threads that are started in it.

    Blocks nest; the inner one adds to the outer. Not around a `yield`: the block has to end where it began.
    """
    given = {"sandbox": sandbox, "task": task, "request": request}
    token = _ids.set({**_ids.get(), **{name: value for name, value in given.items() if value is not None}})
    try:
        yield
    finally:
        _ids.reset(token)


class JsonLines(logging.Formatter):
    """`at`, `level`, `where`, `what`, ids, and whatever was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "where": record.name,
            "what": _text(_message(record), MAX_TEXT_CHARS),
        }
        extra = [(name, value) for name, value in vars(record).items() if name not in OWN and name not in line]
        shown = {**_ids.get(), **dict(extra[:MAX_FIELDS])}
        line.update((name[:100], _shown(value, name)) for name, value in shown.items())
        if record.exc_info:
            # Its end says what went wrong.
            line["traceback"] = _text(self.formatException(record.exc_info), MAX_TRACEBACK_CHARS, end=True)
        return _bounded(line)


def open_log() -> None:
    """From now on everything that is logged goes to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)


def _bounded(line: dict[str, Any]) -> str:
    """The line as JSON; one that is still too long keeps what it says first."""
    encoded = orjson.dumps(line)
    if len(encoded) > MAX_LINE_BYTES:
        first = {name: line[name] for name in ("at", "level", "where", "what", *_ids.get()) if name in line}
        first = {name: _text(str(value), MAX_TEXT_CHARS // 4) for name, value in first.items()}
        encoded = orjson.dumps({**first, "cut_bytes": len(encoded)})
    return encoded.decode()


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001, RUF100 — a line that was badly asked for is still a line
        return f"{_repr(record.msg)} with {_repr(record.args)} ({type(error).__name__})"


def _shown(value: object, name: object = "", depth: int = 0) -> Any:
    """`value` as JSON can say it: bounded, and without what is nobody's business."""
    if isinstance(name, str) and SECRET_NAME.search(name):
        return HIDDEN
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < MAX_INT):
        return value
    match value:
        case dict() if depth < MAX_DEPTH:
            items = list(value.items())[:MAX_ITEMS]
            return {_text(_words(key), 100): _shown(item, key, depth + 1) for key, item in items}
        case list() | tuple() | set() | frozenset() if depth < MAX_DEPTH:
            return [_shown(item, "", depth + 1) for item in list(value)[:MAX_ITEMS]]
    return _text(_words(value), MAX_TEXT_CHARS)


def _words(value: object) -> str:
    if isinstance(value, PurePath):
        return str(value)
    return str.__str__(value) if isinstance(value, str) else _repr(value)


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001, RUF100 — whatever is wrong with it, the line is written
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


def _text(text: str, limit: int, *, end: bool = False) -> str:
    """`text` in UTF-8 (file names need not be), with its secrets hidden, and not longer than `limit`."""
    kept = text[-2 * limit :] if end else text[: 2 * limit]
    kept = SECRET_TEXT.sub(lambda found: (found["scheme"] or found["url"] or "") + HIDDEN, kept)
    kept = kept.encode("utf-8", "backslashreplace").decode()
    if len(kept) <= limit and len(text) <= 2 * limit:
        return kept
    return "…" + kept[-limit:] if end else kept[:limit] + "…"
