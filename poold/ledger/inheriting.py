"""What a lost host left behind, taken into this ledger from a copy of its own.

A sandbox comes with its events, runs and audit rows in one transaction, and so does a task: it is here as a whole or
not at all. One that is here already is passed over, so a takeover that was cut short is simply done again, here or by
whoever takes this host over later: what went on here since then is newer than what the lost ledger says.

Audit rows get new numbers in this ledger's chain; where they stood in the other is in their detail (`of`). Where the
other chain ended is in `takeovers`, so that the replica that stays in the store can be checked against it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract.states import Event, State
from poold.ledger import audit, leftovers, repeats, sandboxes, workspaces
from poold.ledger.connect import Connection
from poold.ledger.driver import sqlite3
from poold.ledger.repeats import Repeat
from poold.ledger.trusting import BadRow, is_needed, leftovers_of, must_be_id, must_be_own

__all__ = ["BadRow", "Former"]

BATCH = 50  # of those that have ended: so many in one transaction
MAX_MISSING, MAX_TOLD = 100, 1000  # that one row of the audit names; rows that are looked at
LOST = "host_lost"
# A machine of these may have run, or was on the lost host's disk.
GONE = (State.PENDING, State.STARTING, State.RUNNING, State.PAUSED)
# Tables and the column that says whose row it is. The first is the one that others refer to.
OF_SANDBOX = (("sandboxes", "id"), ("usage", "sandbox"), ("replies", "sandbox"))
OF_TASK = (
    *(("tasks", "id"), ("prompts", "task"), ("steps", "task"), ("questions", "task"), ("artifacts", "task")),
    *(("webhooks", "task"), ("checkpoints", "task")),
)


@dataclass(frozen=True)
class Former:
    """The host that is gone, and the end of its audit chain."""

    host: str
    epoch: int
    audit: audit.Head


def begin(db: sqlite3.Connection, lost: Former, *, now_ms: int) -> bool:
    """Write down that the lost host is taken over here. False if all of it is here already."""
    row = db.execute("SELECT whole_ms FROM takeovers WHERE host = ? AND epoch = ?", (lost.host, lost.epoch)).fetchone()
    if row is not None:
        return row[0] is None
    db.execute(
        "INSERT INTO takeovers (host, epoch, begun_ms, audit_seq, audit_hash) VALUES (?, ?, ?, ?, ?)",
        (lost.host, lost.epoch, now_ms, lost.audit.seq, lost.audit.hash),
    )
    _note(db, lost, "takeover.begin", {"audit_seq": lost.audit.seq, "audit_hash": lost.audit.hash.hex()}, now_ms)
    return True


def finish(db: sqlite3.Connection, lost: Former, *, now_ms: int) -> dict[str, int]:
    """Write down that all of it is here. What it came to."""
    row = db.execute(
        "UPDATE takeovers SET whole_ms = coalesce(whole_ms, ?) WHERE host = ? AND epoch = ? RETURNING sandboxes, tasks",
        (now_ms, lost.host, lost.epoch),
    ).fetchone()
    told = {"sandboxes": row[0], "tasks": row[1]}
    _note(db, lost, "takeover.end", told, now_ms)
    return told


def batches(old: sqlite3.Connection) -> Iterator[tuple[str, list[str]]]:
    """Whom the lost ledger tells of, as (`task` or `sandbox`, ids): those that are not over first, each alone.

    A sandbox that ended under a task that goes on comes before it: the task must see that, and not make it anew.
    """
    alive = "state NOT IN ('stopped', 'error', 'completed', 'failed')"
    first = {
        "sandbox": f"{alive} OR id IN (SELECT sandbox FROM tasks WHERE {alive} AND sandbox IS NOT NULL)",  # noqa: S608
        "task": alive,
    }
    for kind, table in (("sandbox", "sandboxes"), ("task", "tasks")):
        for row in old.execute(f"SELECT id FROM {table} WHERE {first[kind]} ORDER BY created_ms, id"):  # noqa: S608
            yield kind, [row[0]]
    for kind, table in (("sandbox", "sandboxes"), ("task", "tasks")):
        over = old.execute(
            f"SELECT id FROM {table} WHERE NOT ({first[kind]}) ORDER BY created_ms DESC, id"  # noqa: S608
        )
        while ids := [row[0] for row in over.fetchmany(BATCH)]:
            yield kind, ids


def take(
    db: sqlite3.Connection, old: sqlite3.Connection, lost: Former, kind: str, ids: Sequence[str], *, now_ms: int
) -> int:
    """Take these in, with all that belongs to them. How many were not here before.

    Raises `BadRow`, or whatever else a row that makes no sense leads to; then nothing of these is here.
    """
    for one in ids:
        must_be_id(kind, one)
    tables = OF_SANDBOX if kind == "sandbox" else OF_TASK
    new = [one for one in ids if not _is_here(db, tables[0][0], one)]
    for one in new:
        for table, column in tables:
            _copy(db, old, table, column, one)
        _copy_events(db, old, one)
        must_be_own(db, kind, one)
        if kind == "sandbox":
            _copy_audit(db, old, lost, one)
            _lose(db, one, lost, now_ms)
    column = "sandboxes" if kind == "sandbox" else "tasks"
    db.execute(
        f"UPDATE takeovers SET {column} = {column} + ? WHERE host = ? AND epoch = ?",  # noqa: S608 — one of two
        (len(new), lost.host, lost.epoch),
    )
    return len(new)


def take_repeats(db: sqlite3.Connection, old: sqlite3.Connection, *, now_ms: int) -> None:
    """Which ids were given for idempotency keys: a client that asks again must not get a second one.

    Reservations are not taken in: whoever opens an owner's book anew counts what lives.
    """
    owners = [row[0] for row in old.execute("SELECT DISTINCT owner FROM repeats")]
    for owner in owners:
        rows = old.execute("SELECT key, asked, id, at_ms FROM repeats WHERE owner = ?", (owner,))
        repeats.merge(db, owner, (Repeat(*row) for row in rows), now_ms=now_ms)


def take_leftovers(db: sqlite3.Connection, old: sqlite3.Connection) -> list[str]:
    """What the lost host put into the store for nobody is removed from there by this one. What it says so of and what
    cannot be its own, or is needed here, is left alone, and returned.
    """
    good, bad = leftovers_of(old)
    for prefix, since_ms in good:
        if is_needed(db, prefix):
            bad.append(prefix)
        else:
            leftovers.add(db, prefix, now_ms=since_ms)
    for owner, name, due_ms in old.execute("SELECT owner, name, due_ms FROM workspace_sweeps"):
        workspaces.sweep_later(db, owner, name, due_ms=due_ms)
    return bad


def lack(db: sqlite3.Connection, lost: Former, missing: Mapping[str, str], *, now_ms: int) -> dict[str, int]:
    """Write down that all is here but these, and why. What it came to. It is not whole then: see `unfinished`."""
    detail = {"missing": dict(list(missing.items())[:MAX_MISSING]), "count": len(missing)}
    told = {"host": lost.host, "epoch": lost.epoch, **detail}
    before = audit.listed(db, action="takeover.lacks", limit=MAX_TOLD)
    if all(each.detail != told for each in before):
        _note(db, lost, "takeover.lacks", detail, now_ms)
    row = db.execute("SELECT sandboxes, tasks FROM takeovers WHERE host = ? AND epoch = ?", (lost.host, lost.epoch))
    return {**dict(zip(("sandboxes", "tasks"), row.fetchone(), strict=True)), "missing": len(missing)}


def unfinished(db: sqlite3.Connection) -> list[tuple[str, int]]:
    """Takeovers, by host and epoch, of which something is not here yet."""
    return [tuple(row) for row in db.execute("SELECT host, epoch FROM takeovers WHERE whole_ms IS NULL ORDER BY 1, 2")]


def in_store(db: sqlite3.Connection) -> frozenset[str]:
    """Where the replicas are of which something is not here yet."""
    return frozenset(f"ledger/{host}/{epoch}/" for host, epoch in unfinished(db))


def take_unfinished(db: sqlite3.Connection, old: sqlite3.Connection) -> None:
    """What the lost host had not wholly taken in itself is this one's to finish."""
    columns = "host, epoch, begun_ms, audit_seq, audit_hash"
    rows = old.execute(f"SELECT {columns} FROM takeovers WHERE whole_ms IS NULL").fetchall()  # noqa: S608 — constants
    db.executemany(f"INSERT OR IGNORE INTO takeovers ({columns}) VALUES (?, ?, ?, ?, ?)", [tuple(row) for row in rows])  # noqa: S608


def _is_here(db: sqlite3.Connection, table: str, one: str) -> bool:
    return db.execute(f"SELECT 1 FROM {table} WHERE id = ?", (one,)).fetchone() is not None  # noqa: S608 — our names


def _copy(db: sqlite3.Connection, old: sqlite3.Connection, table: str, column: str, one: str) -> None:
    rows = old.execute(f"SELECT * FROM {table} WHERE {column} = ?", (one,))  # noqa: S608 — our own names
    _insert(db, table, [each[0] for each in rows.description], rows)


def _copy_events(db: sqlite3.Connection, old: sqlite3.Connection, stream: str) -> None:
    """Under the numbers that they have in their stream. `id`, which counts over all streams, is this ledger's own."""
    columns = ["stream", "seq", "at_ms", "kind", "data", "guest_seq"]
    rows = old.execute(f"SELECT {', '.join(columns)} FROM events WHERE stream = ? ORDER BY seq", (stream,))  # noqa: S608
    _insert(db, "events", columns, rows)
    if isinstance(db, Connection):
        db.touched.add(stream)


def _insert(db: sqlite3.Connection, table: str, columns: Sequence[str], rows: Iterable[Any]) -> None:
    places = ", ".join("?" * len(columns))
    sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"  # noqa: S608 — our own names
    db.executemany(sql, (tuple(row) for row in rows))


def _copy_audit(db: sqlite3.Connection, old: sqlite3.Connection, lost: Former, sandbox_id: str) -> None:
    after, page = 0, audit.listed(old, sandbox=sandbox_id, limit=BATCH)
    while page:
        for entry in page:
            of = {"host": lost.host, "epoch": lost.epoch, "seq": entry.seq}
            audit.add(db, audit.moved(entry, of))
        after = page[-1].seq
        page = audit.listed(old, sandbox=sandbox_id, after=after, limit=BATCH)


def _lose(db: sqlite3.Connection, sandbox_id: str, lost: Former, now_ms: int) -> None:
    """What only ran there, or was on a disk there, is over. What is in the store is as it was."""
    sandbox = sandboxes.get(db, sandbox_id)
    if sandbox.state is State.STARTING and sandbox.hibernated is not None:  # its files are in the store, too
        sandboxes.move(db, sandbox_id, Event.RETURN, now_ms=now_ms)
    elif sandbox.state in GONE:
        reason = sandbox.lost(f"{LOST}: host {lost.host} is gone, and with it what only that host had")
        sandboxes.move(db, sandbox_id, Event.FAIL, now_ms=now_ms, reason=reason)


def _note(db: sqlite3.Connection, lost: Former, action: str, detail: dict[str, Any], now_ms: int) -> None:
    told = {"host": lost.host, "epoch": lost.epoch, **detail}
    audit.add(db, audit.Entry(at_ms=now_ms, action=action, detail=told))
