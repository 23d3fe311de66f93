"""Who did what to what: a chain of rows, each with a hash over the one before and itself.

The hash of a row is SHA-256 over the former row's hash (32 bytes) and the row as a compact JSON array in UTF-8:
`[seq, at_ms, owner, sandbox, request, action, detail, exit_code, duration_ms, bytes]`, `detail` being the text as it is
stored. The first row follows the anchor: 32 zero bytes in a new ledger, later the last row that retention removed.

What this finds without help: a row that was changed, removed, inserted or put elsewhere, unless all rows behind it were
computed anew. What needs a head that was kept elsewhere (`verify(db, head=…)`): rows missing at the end, and a chain
that was computed anew.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from contract.models import LOCAL_OWNER
from poold.ledger.driver import sqlite3


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that was done. `seq` is 0 until it is in the ledger."""

    at_ms: int
    action: str
    owner: str = LOCAL_OWNER
    sandbox: str | None = None
    request: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    duration_ms: int | None = None
    bytes: int | None = None
    seq: int = 0

    def view(self) -> dict[str, Any]:
        """The reply's JSON."""
        return {
            "seq": self.seq,
            "at_ms": self.at_ms,
            "owner": self.owner,
            "sandbox": self.sandbox,
            "request": self.request,
            "action": self.action,
            "detail": self.detail,
            "exit_code": self.exit_code,
            "duration_ms": self.duration_ms,
            "bytes": self.bytes,
        }


@dataclass(frozen=True, slots=True)
class Head:
    """A row's place in the chain. Kept elsewhere, it vouches for every row up to it."""

    seq: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found. Of a broken chain, `rows` are those before the break."""

    rows: int
    first: int | None
    last: int | None
    broken_at: int | None = None
    why: str | None = None

    @property
    def ok(self) -> bool:
        return self.why is None

    def view(self) -> dict[str, Any]:
        """The reply's JSON."""
        return {
            "ok": self.ok,
            "rows": self.rows,
            "first": self.first,
            "last": self.last,
            "broken_at": self.broken_at,
            "why": self.why,
        }


GENESIS = Head(0, bytes(32))
COLUMNS = "seq, at_ms, owner, sandbox, request, action, detail, exit_code, duration_ms, bytes"


def add(db: sqlite3.Connection, entry: Entry) -> int:
    """Write `entry` at the end of the chain and return its number there."""
    last = head(db)
    row = (
        last.seq + 1,
        entry.at_ms,
        entry.owner,
        entry.sandbox,
        entry.request,
        entry.action,
        orjson.dumps(entry.detail).decode(),
        entry.exit_code,
        entry.duration_ms,
        entry.bytes,
    )
    db.execute(
        f"INSERT INTO audit ({COLUMNS}, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 — constants
        (*row, _hash(last.hash, row)),
    )
    return row[0]


def moved(entry: Entry, of: Mapping[str, Any]) -> Entry:
    """The row of another ledger as it is to stand in this one, with where it stood there."""
    return replace(entry, seq=0, detail={**entry.detail, "of": dict(of)})


def head(db: sqlite3.Connection) -> Head:
    """The end of the chain. To find out later whether rows are missing there, keep it somewhere else."""
    row = db.execute("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1").fetchone()
    return anchor(db) if row is None else Head(row[0], row[1])


def anchor(db: sqlite3.Connection) -> Head:
    """The row before the first that is left."""
    row = db.execute("SELECT seq, hash FROM audit_anchor").fetchone()
    return Head(row[0], row[1])


def listed(
    db: sqlite3.Connection,
    *,
    sandbox: str | None = None,
    owner: str | None = None,
    action: str | None = None,
    after: int = 0,
    limit: int,
) -> list[Entry]:
    """The rows behind number `after` that have all that is asked for, in their order."""
    asked = {"sandbox": sandbox, "owner": owner, "action": action}
    given = {name: value for name, value in asked.items() if value is not None}
    only = "".join(f" AND {name} = :{name}" for name in given)
    rows = db.execute(
        f"SELECT {COLUMNS} FROM audit WHERE seq > :after{only} ORDER BY seq LIMIT :limit",  # noqa: S608 — constants
        {**given, "after": after, "limit": limit},
    )
    return [_entry(row) for row in rows]


def verify(db: sqlite3.Connection, *, head: Head | None = None) -> Verdict:
    """Compute the whole chain again. Reads rows one by one and changes nothing: any connection will do.

    With `head`, its row must be in the chain as it was when the head was taken.
    """
    before = start = anchor(db)
    broken: tuple[int, str] | None = None
    if start.seq == 0 and start != GENESIS:
        return Verdict(0, None, None, 0, "the anchor was changed: no row was ever removed, but it is not the beginning")
    found = head is None or head == start
    try:
        for row in _rows(db, start.seq):
            broken = _fault(before, row)
            if broken is not None:
                break
            before = Head(row[0], row[-1])
            found = found or before == head
    except sqlite3.Error as error:  # text that is none, or a page that cannot be read
        broken = before.seq + 1, f"the row behind {before.seq} cannot be read: {error}"
    if broken is None and head is not None and not found:
        broken = _missing(head, start, before)
    rows = before.seq - start.seq
    first, last = (start.seq + 1, before.seq) if rows else (None, None)
    return Verdict(rows, first, last, *(broken or (None, None)))


def _rows(db: sqlite3.Connection, after: int) -> Iterator[tuple[Any, ...]]:
    cursor = db.cursor()
    cursor.row_factory = None  # plain tuples, whatever the connection makes
    question = f"SELECT {COLUMNS}, hash FROM audit WHERE seq > ? ORDER BY seq"  # noqa: S608 — constants
    try:
        for row in cursor.execute(question, (after,)):
            yield row
            after = row[0]
    except sqlite3.Error:  # the driver reads a row ahead: asked for one by one, the one that fails is the broken one
        while (row := cursor.execute(f"{question} LIMIT 1", (after,)).fetchone()) is not None:
            yield row
            after = row[0]


def _fault(before: Head, row: tuple[Any, ...]) -> tuple[int, str] | None:
    """Where and why `row` does not follow `before`, or None."""
    if row[0] != before.seq + 1:
        return before.seq + 1, f"row {before.seq + 1} is missing: {row[0]} follows {before.seq}"
    if row[-1] != _hash(before.hash, row[:-1]):
        return row[0], f"row {row[0]} is not what was written: its hash does not match"
    return None


def _missing(head: Head, start: Head, last: Head) -> tuple[int, str]:
    if head.seq > last.seq:
        return last.seq + 1, f"rows {last.seq + 1} to {head.seq} are missing at the end"
    if head.seq < start.seq:
        return start.seq, f"row {head.seq} was removed by retention: its head says nothing about what is left"
    return head.seq, f"row {head.seq} is another than the one that the given head was taken from"


def _hash(before: bytes, row: tuple[Any, ...]) -> bytes:
    return hashlib.sha256(before + orjson.dumps(row)).digest()


def read_detail(text: str) -> dict[str, Any]:
    """The detail of a row, as it is stored."""
    detail: dict[str, Any] = orjson.loads(text)
    return detail


def _entry(row: sqlite3.Row) -> Entry:
    return Entry(
        seq=row[0],
        at_ms=row[1],
        owner=row[2],
        sandbox=row[3],
        request=row[4],
        action=row[5],
        detail=read_detail(row[6]),
        exit_code=row[7],
        duration_ms=row[8],
        bytes=row[9],
    )
