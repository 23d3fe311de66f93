"""Words for people: text that a terminal may show, sizes, times, and the width that a text takes. No I/O."""

import unicodedata
from collections.abc import Mapping, Sequence

DAY, HOUR, MINUTE, SECOND = 86_400, 3600, 60, 1
UNITS = {DAY: "d", HOUR: "h", MINUTE: "m", SECOND: "s"}


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


def fitted(lines: Sequence[str], rows: int) -> list[str]:
    """As many lines as there are rows. If that is not all of them, the last says how many are not shown."""
    if len(lines) <= rows:
        return list(lines)
    shown = max(0, rows - 1)
    return [*lines[:shown], f"… {len(lines) - shown} more"][: max(0, rows)]


def span(seconds: float) -> str:
    """A length of time in its two largest units, without what is nothing: 45s, 9m59s, 2h, 1h30m, 5d3h."""
    left, sizes = int(seconds), list(UNITS)
    first = next((index for index, size in enumerate(sizes) if left >= size), len(sizes) - 1)
    said = []
    for size in sizes[first : first + 2]:
        count, left = divmod(left, size)
        said.append(f"{count}{UNITS[size]}" if count else "")
    return "".join(said) or "0s"


def relative(at_ms: int | None, now_ms: int) -> str:
    """`3m5s ago`, `in 2h`, or `-` for never. What is ahead is rounded: an answer takes a moment to come."""
    if at_ms is None:
        return "-"
    away = (now_ms - at_ms) / 1000
    return f"{span(away)} ago" if away >= 0 else f"in {span(round(-away))}"


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


def shape(vcpus: int, memory_mb: int, disk_mb: int) -> str:
    """What a machine is made of: `1 vcpu, 512 MB memory, 4 GB disk`."""
    noun = "vcpu" if vcpus == 1 else "vcpus"
    return f"{vcpus} {noun}, {megabytes(memory_mb)} memory, {megabytes(disk_mb)} disk"


def pairs(values: Mapping[str, object]) -> str:
    """`a=1 b=2`"""
    return " ".join(f"{name}={value}" for name, value in values.items())


def wrapped(text: str, columns: int) -> list[str]:
    """One line that was cleaned, as lines that fit: broken between words, and within those that are too long."""
    if width(text) <= columns:
        return [text]
    lines, line = [], ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if width(longer) <= columns:
            line = longer
            continue
        *full, line = [*([line] if line else []), *_broken(word, columns)]
        lines += full
    return [*lines, line]


def _broken(word: str, columns: int) -> list[str]:
    pieces, piece, used = [], "", 0
    for character in word:
        more = _columns(character)
        if piece and used + more > columns:
            pieces.append(piece)
            piece, used = "", 0
        piece, used = piece + character, used + more
    return [*pieces, piece]


def many(count: float) -> str:
    """A number as people say it: 950, 34.5k, 1.2M."""
    for unit in ("", "k", "M", "G"):
        if count < 1000 or unit == "G":
            break
        count /= 1000
    return f"{count:.0f}{unit}" if not unit or count >= 100 else f"{count:.1f}{unit}".replace(".0", "")


def dollars(usd: float, *, is_estimate: bool = False) -> str:
    """Cents, or what is less than one: $1.20, $0.0042, ≈$0.42."""
    return ("≈" if is_estimate else "") + (f"${usd:.2f}" if usd >= 0.01 or usd <= 0 else f"${usd:.4f}")


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
