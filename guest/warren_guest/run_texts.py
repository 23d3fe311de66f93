"""Texts in events: cut where they are long, so that an event stays small; and lines, whatever a program prints."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

TEXT_LIMIT = 16 << 10
EVENT_LIMIT = 60 << 10
LINE_LIMIT = 4 << 20
_PART_LIMIT = 4 << 10
_DEPTH_LIMIT = 32


def clip(text: str, limit: int = TEXT_LIMIT) -> tuple[str, bool]:
    """At most `limit` bytes of `text`, and whether something was cut off."""
    if len(text) * 4 <= limit:
        return text, False
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return text, False
    return encoded[:limit].decode("utf-8", "ignore"), True


def clip_fields(fields: Mapping[str, object], limit: int = TEXT_LIMIT) -> dict[str, object]:
    """Fields with every text cut; `truncated` is beside them if one was."""
    found: dict[str, object] = {}
    is_cut = False
    for name, value in fields.items():
        if isinstance(value, str):
            found[name], was_cut = clip(value, limit)
            is_cut = is_cut or was_cut
        else:
            found[name] = value
    return {**found, "truncated": True} if is_cut else found


def clip_arguments(arguments: Mapping[str, object]) -> tuple[Mapping[str, object], bool]:
    """Arguments of a tool that an event can hold: as they are, with shorter texts, or the start of their JSON."""
    whole = _encoded(arguments)
    if whole is not None and len(whole) <= TEXT_LIMIT:
        return arguments, False
    if whole is not None:
        shorter = _shorten(arguments, _DEPTH_LIMIT)
        if isinstance(shorter, dict) and len(_encoded(shorter) or whole) <= TEXT_LIMIT:
            return shorter, True
    return {"json": (whole or b"")[:_PART_LIMIT].decode("utf-8", "ignore")}, True


def _encoded(value: object) -> bytes | None:
    """JSON that every reader takes; None for what has none (infinity, or deeper than anybody reads)."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return None


def _shorten(value: object, depth: int) -> object:
    if depth == 0:
        return None
    if isinstance(value, str):
        return clip(value, _PART_LIMIT)[0]
    if isinstance(value, dict):
        return {clip(name, 256)[0]: _shorten(item, depth - 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_shorten(item, depth - 1) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end. One that `is_cut` was longer than `LINE_LIMIT`; this is its beginning."""

    data: bytes
    is_cut: bool = False


class Lines:
    """Bytes in, lines out. Holds at most one line, and never more than `LINE_LIMIT` of it."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._is_cut = False

    def feed(self, data: bytes) -> Iterator[Line]:
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._hold(end)
            yield self._take()
        self._hold(rest)

    def finish(self) -> Iterator[Line]:
        """What came after the last line break."""
        if self._held:
            yield self._take()

    def _hold(self, data: bytes) -> None:
        room = LINE_LIMIT - len(self._held)
        if len(data) > room:
            self._is_cut = True
        self._held += data[:room]

    def _take(self) -> Line:
        line = Line(bytes(self._held), self._is_cut)
        self._held = bytearray()
        self._is_cut = False
        return line
