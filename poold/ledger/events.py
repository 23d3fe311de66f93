"""What clients follow: streams of events, each numbered from 1 without gaps and without duplicates.

Events are never changed. They go with their stream, by retention, and not before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from poold.ledger.connect import Connection
from poold.ledger.driver import sqlite3


@dataclass(frozen=True, slots=True)
class Event:
    """One row. `id` counts over all streams, `seq` in its own."""

    id: int
    stream: str
    seq: int
    at_ms: int
    kind: str
    data: dict[str, Any]
    guest_seq: int | None = None

    @property
    def by(self) -> str:
        """Who told it. A guest calls its events what it likes, so only what we told is to be believed."""
        return "guest" if self.guest_seq is not None or self.kind == "gap" else "host"

    def view(self) -> dict[str, Any]:
        """The reply's JSON. The guest's own number is nobody else's business."""
        return {
            "id": self.id,
            "stream": self.stream,
            "seq": self.seq,
            "at_ms": self.at_ms,
            "by": self.by,
            "kind": self.kind,
            "data": self.data,
        }


class Page(list[Event]):
    """Events that were read at once. `is_cut`: there may be more, for these had as many bytes as were wanted."""

    is_cut = False


# Two statements take half the time of one INSERT … SELECT … RETURNING, which puts its rows in a table of its own first.
NEXT_SEQ = "SELECT coalesce(max(seq), 0) + 1 FROM events WHERE stream = ?"
APPEND = "INSERT INTO events (stream, seq, at_ms, kind, data, guest_seq) VALUES (?, ?, ?, ?, ?, ?)"
KNOWN_STREAMS = 10_000  # of which the last number is kept in memory
NEWEST = (1 << 63) - 1  # an id that none is beyond
KNOWN = "SELECT seq FROM events WHERE stream = ? AND guest_seq = ?"
COLUMNS = "id, stream, seq, at_ms, kind, data, guest_seq"


def append(
    db: sqlite3.Connection,
    stream: str,
    kind: str,
    data: Mapping[str, Any],
    *,
    at_ms: int,
    guest_seq: int | None = None,
) -> int:
    """Put an event at the end of `stream` and return its number.

    One that the guest has already told us changes nothing; the number is the one that it got then.
    """
    if guest_seq is not None and (known := db.execute(KNOWN, (stream, guest_seq)).fetchone()) is not None:
        return int(known[0])
    seq = _next_seq(db, stream)
    db.execute(APPEND, (stream, seq, at_ms, kind, orjson.dumps(data).decode(), guest_seq))
    if isinstance(db, Connection):
        db.touched.add(stream)
        db.numbers[stream] = seq
    return seq


def _next_seq(db: sqlite3.Connection, stream: str) -> int:
    """The writer's own connection knows it of the streams that it wrote to lately."""
    if isinstance(db, Connection):
        known = db.numbers.get(stream)
        if known is not None:
            return known + 1
        if len(db.numbers) >= KNOWN_STREAMS:
            db.numbers.clear()
    seq: int = db.execute(NEXT_SEQ, (stream,)).fetchone()[0]
    return seq


def after(
    db: sqlite3.Connection, stream: str, seq: int, limit: int, *, most_bytes: int | None = None, up_to: int = NEWEST
) -> Page:
    """The next events of `stream` behind number `seq`: `limit` at most, and no more once they have `most_bytes`.

    None of them has an id beyond `up_to`.
    """
    return _events(
        db.execute(
            f"SELECT {COLUMNS} FROM events"  # noqa: S608 — constants
            " WHERE stream = ? AND seq > ? AND id <= ? ORDER BY seq LIMIT ?",
            (stream, seq, up_to, limit),
        ),
        most_bytes,
    )


def everything_after(
    db: sqlite3.Connection, event_id: int, limit: int, *, most_bytes: int | None = None, up_to: int = NEWEST
) -> Page:
    """The next events of all streams behind the one with this id. One writer: no smaller id is committed later."""
    return _events(
        db.execute(
            f"SELECT {COLUMNS} FROM events WHERE id > ? AND id <= ? ORDER BY id LIMIT ?",  # noqa: S608 — constants
            (event_id, up_to, limit),
        ),
        most_bytes,
    )


def last_guest_seq(db: sqlite3.Connection, stream: str) -> int:
    """How far the guest's own events of `stream` are written down; 0 if none is."""
    row = db.execute(
        "SELECT max(guest_seq) FROM events WHERE stream = ? AND guest_seq IS NOT NULL", (stream,)
    ).fetchone()
    return row[0] or 0


def last_seq(db: sqlite3.Connection, stream: str) -> int:
    """The number of the last event of `stream`; 0 if there is none."""
    return int(db.execute(NEXT_SEQ, (stream,)).fetchone()[0]) - 1


def newest_id(db: sqlite3.Connection) -> int:
    """The id of the newest event of all; 0 if there is none."""
    return db.execute("SELECT max(id) FROM events").fetchone()[0] or 0


def _events(rows: sqlite3.Cursor, most_bytes: int | None) -> Page:
    page, read = Page(), 0
    for id_, stream, seq, at_ms, kind, data, guest_seq in rows:
        page.append(Event(id_, stream, seq, at_ms, kind, orjson.loads(data), guest_seq))
        read += len(data)
        if most_bytes is not None and read >= most_bytes:
            page.is_cut = True
            break
    return page
