"""A page's errors, as lines of text: what it wrote to its console, what it threw, what it could not load."""

from typing import Any

from warren_guest.browser.scripts import cut, exception_text

LINE_BYTES = 1000
_ERRORS = frozenset({"error", "assert"})


def line_of(method: str, params: dict[str, Any]) -> str | None:
    """The error that an event tells of; None if it tells of none."""
    match method, params:
        case "Runtime.consoleAPICalled", {"type": str(kind), "args": list(args)} if kind in _ERRORS:
            return cut(" ".join(_shown(each) for each in args[:20]), LINE_BYTES)
        case "Runtime.exceptionThrown", {"exceptionDetails": dict(details)}:
            return cut(exception_text(details), LINE_BYTES)
        case "Log.entryAdded", {"entry": {"level": "error", "text": str(text)} as entry}:
            where = entry.get("url")
            if isinstance(where, str) and where.endswith("/favicon.ico"):
                return None  # what the browser asks for by itself, and most servers have not
            return cut(f"{text} ({where})" if where else text, LINE_BYTES)
    return None


def _shown(value: object) -> str:
    if not isinstance(value, dict):
        return ""
    return str(value.get("value", value.get("description", value.get("unserializableValue", value.get("type", "")))))
