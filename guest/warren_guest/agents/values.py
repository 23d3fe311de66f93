"""Reading what an agent printed: any value may be missing, of another type, or absurd. Nothing here raises."""

import json
import math
from collections.abc import Mapping
from typing import Any

_COUNT_LIMIT = 10**15
_USD_LIMIT = 10**9

Object = Mapping[str, Any]


def parse(line: bytes) -> Object | None:
    """The JSON object that a line is, or None if it is none."""
    try:
        value = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(_constant: str) -> None:
    raise ValueError("NaN and Infinity are not JSON")


def an_object(value: object) -> Object:
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[Object]:
    """The objects of a list; whatever else is in it is left out."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def count(value: object) -> int:
    """A number of tokens: whole, not negative, not absurd."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0
    return min(max(int(value), 0), _COUNT_LIMIT)


def usd(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return min(max(float(value), 0.0), float(_USD_LIMIT))


def exit_code(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 31) <= value < 1 << 32:
        return None
    return value


def plain(content: object) -> str:
    """The text of a content that is a text, or a list of blocks of which some are."""
    if isinstance(content, str):
        return content
    return "\n".join(text(block.get("text")) for block in objects(content) if block.get("type") == "text")
