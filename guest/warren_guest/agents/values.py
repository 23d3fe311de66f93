"""Reading what an agent printed: any value may be missing, of another type, or absurd. Nothing here raises."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

_COUNT_LIMIT = 10**15
_USD_LIMIT = 10**9
# Tools have arguments of a few levels.
_DEPTH_LIMIT = 200

Object = Mapping[str, Any]


def parse(line: bytes) -> Object | None:
    """The JSON object that a line is, or None if it is none."""
    try:
        value = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not _is_deep(line, value) else None


def _is_deep(line: bytes, value: object) -> bool:
    """Whether there is more inside each other than can be written again: what is read last may go deeper than that."""
    if line.count(b"{") + line.count(b"[") <= _DEPTH_LIMIT:
        return False
    level = [value]
    for _ in range(_DEPTH_LIMIT):
        level = [item for each in level if isinstance(each, dict | list) for item in _items(each)]
    return bool(level)


def _items(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


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
    return int(_number(value, _COUNT_LIMIT) or 0)


def usd(value: object) -> float | None:
    number = _number(value, _USD_LIMIT)
    return None if number is None else float(number)


def _number(value: object, limit: int) -> int | float | None:
    """A number from 0 to `limit`; None for what is none. A whole one may be larger than any float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return min(max(value, 0), limit)


def exit_code(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 31) <= value < 1 << 32:
        return None
    return value


def plain(content: object) -> str:
    """The text of a content that is a text, or a list of blocks of which some are."""
    if isinstance(content, str):
        return content
    return "\n".join(text(block.get("text")) for block in objects(content) if block.get("type") == "text")
