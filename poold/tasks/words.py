"""Values from a guest, as what they should be, or as nothing. No I/O."""

import re
from typing import Any, TypeVar

import orjson

T = TypeVar("T")
MAX_NUMBER = 1 << 53
MAX_USD = 10_000_000.0


def cut(text: str, chars: int) -> str:
    """`text`, or as much of its beginning."""
    return text if len(text) <= chars else text[: chars - 1] + "…"


def text_of(value: object, chars: int) -> str | None:
    """A text of at most so many characters; None if it is none."""
    return cut(value, chars) if isinstance(value, str) else None


def number(value: object, otherwise: T = 0) -> int | T:  # type: ignore[assignment]
    """A whole number from 0 that a ledger can hold."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
        return otherwise
    return value


def usd_of(value: object) -> float | None:
    """Dollars, to six decimals."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_USD:
        return None
    return round(float(value), 6)


def has_form(value: object, pattern: str) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def shown_json(value: Any, limit: int) -> Any:
    """`value`, or the beginning of its text if it is too long."""
    data = orjson.dumps(value)
    return value if len(data) <= limit else cut(data[:limit].decode("utf-8", "replace"), limit) if limit else None
