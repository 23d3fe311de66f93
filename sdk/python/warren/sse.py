"""Server-sent events from bytes as they arrive. No I/O."""

import json
from dataclasses import dataclass
from typing import Any

from warren.errors import ProtocolError

MAX_EVENT_BYTES = 16 << 20  # far more than the gateway sends; what is longer comes from somebody else


@dataclass(frozen=True)
class Message:
    """One event: its `data` is JSON, already read."""

    id: str
    kind: str
    data: Any


class Parser:
    """Bytes in, in pieces of any size; whole messages out. One that was cut short is never given."""

    def __init__(self) -> None:
        self._rest = bytearray()  # of a line that is not whole yet
        self._fields: dict[str, str] = {}
        self._bytes = 0  # of the message that is not whole yet

    def feed(self, data: bytes) -> list[Message]:
        found = []
        *ends, rest = data.split(b"\n")
        for end in ends:
            line = bytes(self._rest) + end
            self._rest.clear()
            self._count(len(line))
            if (message := self._line(line)) is not None:
                found.append(message)
        self._rest += rest
        self._count(0)
        return found

    def _count(self, more: int) -> None:
        self._bytes += more
        if self._bytes + len(self._rest) > MAX_EVENT_BYTES:
            raise ProtocolError(f"an event is longer than {MAX_EVENT_BYTES} bytes")

    def _line(self, line: bytes) -> Message | None:
        text = line.decode("utf-8", "replace").removesuffix("\r")
        if text.startswith(":"):
            return None
        if text:
            name, _, value = text.partition(":")
            value = value.removeprefix(" ")
            before = self._fields.get(name)
            self._fields[name] = f"{before}\n{value}" if name == "data" and before is not None else value
            return None
        fields, self._fields, self._bytes = self._fields, {}, 0
        if "data" not in fields:
            return None
        return Message(fields.get("id", ""), fields.get("event", "message"), _json(fields["data"]))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ProtocolError(f"an event's data is not JSON: {text[:80]!r}") from None
