"""A guest's event stream, as server-sent events. A guest is hostile: what it says is bounded and checked."""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

import orjson

from poold.errors import GuestError

MAX_EVENT_BYTES = 256 << 10  # a command line may have 128 KiB
MAX_NUMBER = 1 << 53
KIND = re.compile(r"[a-z_]{1,32}")
# Of an agent's run. In the timeline of a sandbox no guest's event has a point: there, what has one is the host's.
DOTTED_KIND = re.compile(r"[a-z_]{1,32}(?:\.[a-z_]{1,32})?")
GAP = "gap"  # the one kind without a number: some events before it are lost


@dataclass(frozen=True)
class GuestEvent:
    """One event. Only a `gap` has no number."""

    number: int | None
    kind: str
    data: dict[str, Any]


async def read_events(
    chunks: AsyncIterator[bytes], kinds: re.Pattern[str] = KIND
) -> AsyncGenerator[list[GuestEvent], None]:
    """The events of a stream in batches, as they arrive. Raises `GuestError` for what is none, or of no such kind."""
    waiting = bytearray()
    async for chunk in chunks:
        # Only what is new is searched and only what is whole is copied: a guest may send byte by byte.
        searched = max(0, len(waiting) - 1)
        waiting += chunk
        end = waiting.rfind(b"\n\n", searched)
        blocks = bytes(waiting[:end]).split(b"\n\n") if end >= 0 else []
        del waiting[: end + 2 if end >= 0 else 0]
        if len(waiting) > MAX_EVENT_BYTES:
            raise GuestError(f"an event of the guest is longer than {MAX_EVENT_BYTES} bytes")
        if found := [event for event in (_event(block, kinds) for block in blocks) if event is not None]:
            yield found


def _event(block: bytes, kinds: re.Pattern[str]) -> GuestEvent | None:
    """None for a comment."""
    fields: dict[str, str] = {}
    for line in block.decode("utf-8", "replace").split("\n"):
        name, _, value = line.partition(": ")
        if name and not line.startswith(":"):
            fields[name] = value
    if not fields:
        return None
    number, kind = _number(fields.get("id")), _kind(fields.get("event", ""), kinds)
    if (number is None) != (kind == GAP):
        raise GuestError(f"an event of the guest of the kind {kind!r} has {'no' if number is None else 'a'} number")
    return GuestEvent(number, kind, _data(fields.get("data", "{}")))


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 16 or not 0 < int(text) <= MAX_NUMBER:
        raise GuestError("an event of the guest has an id that is no number")
    return int(text)


def _kind(text: str, kinds: re.Pattern[str]) -> str:
    if not kinds.fullmatch(text):
        raise GuestError("an event of the guest has no kind")
    return text


def _data(text: str) -> dict[str, Any]:
    try:
        data = orjson.loads(text)
        # What is nested too deeply to be written can be read; and a reply puts more around it.
        orjson.dumps([[[[[[[[data]]]]]]]])
    except (orjson.JSONDecodeError, orjson.JSONEncodeError) as error:
        raise GuestError(f"an event of the guest is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise GuestError("an event of the guest is not a JSON object")
    return data
