"""Words for people: text that a terminal may show, sizes, times, and the width that a text takes. No I/O."""

import unicodedata
from collections.abc import Mapping

MINUTE, HOUR, DAY = 60, 3600, 86_400


def clean(text: object) -> str:
    """`text` on one line, and without anything that a terminal would obey or hide: it may come from a guest."""
    return "".join(_shown(character) for character in str(text))


def clean_lines(text: str) -> str:
    """As `clean`, line by line."""
    return "\n".join(clean(line) for line in text.split("\n"))


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else ""


def width(text: str) -> int:
    """How many columns of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, columns: int) -> str:
    """As much of `text` as fits, with a mark where something is missing."""
    if width(text) <= columns:
        return text
    kept, used = [], 1
    for character in text:
        used += _columns(character)
        if used > columns:
            break
        kept.append(character)
    return "".join(kept) + "…" if columns > 0 else ""


def span(seconds: float) -> str:
    """A length of time in its largest unit: 45s, 3m, 2h, 5d."""
    seconds = int(seconds)
    if seconds < MINUTE:
        return f"{seconds}s"
    if seconds < HOUR:
        return f"{seconds // MINUTE}m"
    if seconds < 2 * DAY:
        return f"{seconds // HOUR}h"
    return f"{seconds // DAY}d"


def relative(at_ms: int | None, now_ms: int) -> str:
    """`3m ago`, `in 2h`, or `-` for never."""
    if at_ms is None:
        return "-"
    away = (now_ms - at_ms) / 1000
    return f"{span(away)} ago" if away >= 0 else f"in {span(-away)}"


def size(count: float | None) -> str:
    """Bytes as people say them: 512 B, 3.4 MB, 20 GB."""
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def megabytes(count: float | None) -> str:
    """A size in MB (of 2**20 bytes, as machines have them): 512 MB, 4 GB, 1.5 GB."""
    if count is None:
        return "-"
    if count < 1024:
        return f"{count:.0f} MB"
    return f"{count / 1024:.1f}".removesuffix(".0") + " GB"


def pairs(values: Mapping[str, object]) -> str:
    """`a=1 b=2`"""
    return " ".join(f"{name}={value}" for name, value in values.items())
