"""What is removed, and when.

- A sandbox that has ended, and its events, after `Keep.ended_days`. A task likewise, with its steps, its questions and
  what is known of its files; the files go when somebody who knows the store has seen that they are forgotten.
- Audit rows after `Keep.audit_days`, from the old end on; the anchor moves along, so what is left still verifies.
  Runs (`usage`) that ended so long ago go with them.
- What is kept for repeated requests (`repeats`, `replies`), after a day.
- What is known of proxies (`proxies`) that have told nothing for `Keep.ended_days`.
- The closed book of an owner, which is open elsewhere, after `Keep.ended_days`.

Nothing else is ever removed. Each call of `sweep` is one short transaction; call it again until it says that it is
done. A sandbox's row goes first and its stream is noted as forgotten, then its events go, in as many batches as they
need: a daemon that dies in between goes on where it was.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from poold.ledger import audit
from poold.ledger.driver import sqlite3
from poold.ledger.repeats import KEPT_MS

DAY_MS = 24 * 3600 * 1000
BATCH = 500  # rows of each kind that one sweep removes: some milliseconds
STEPS_OF_A_TASK = 50  # that go with it


@dataclass(frozen=True, slots=True)
class Keep:
    """How long things are kept."""

    ended_days: int = 30
    audit_days: int = 365

    def ended_until_ms(self, now_ms: int) -> int:
        """What ended before this goes."""
        return now_ms - self.ended_days * DAY_MS

    def audit_until_ms(self, now_ms: int) -> int:
        return now_ms - self.audit_days * DAY_MS


@dataclass(frozen=True, slots=True)
class Swept:
    """How many rows one sweep removed."""

    sandboxes: int
    events: int
    audit: int
    runs: int
    repeats: int = 0  # of idempotency keys and of replies
    reservations: int = 0  # of closed books
    proxies: int = 0
    tasks: int = 0

    @property
    def done(self) -> bool:
        """Nothing was left to remove."""
        return not any(getattr(self, kind.name) for kind in fields(self))


def sweep(db: sqlite3.Connection, keep: Keep, *, now_ms: int, batch: int = BATCH) -> Swept:
    """Remove up to `batch` rows of each kind. The audit log notes how many."""
    events = _remove_forgotten(db, batch)
    sandboxes = _forget(db, keep.ended_until_ms(now_ms), batch)
    runs = _remove_runs(db, keep.audit_until_ms(now_ms), batch)
    rows = _cut_audit(db, keep.audit_until_ms(now_ms), batch)
    repeats = _remove_repeats(db, now_ms - KEPT_MS, batch)
    reservations = _remove_closed_books(db, keep.ended_until_ms(now_ms), batch)
    proxies = _remove_proxies(db, keep.ended_until_ms(now_ms), batch)
    tasks = _forget_tasks(db, keep.ended_until_ms(now_ms), max(1, batch // STEPS_OF_A_TASK))
    swept = Swept(sandboxes, events, rows, runs, repeats, reservations, proxies, tasks)
    if not swept.done:
        audit.add(db, audit.Entry(at_ms=now_ms, action="ledger.sweep", detail=asdict(swept)))
    return swept


def cut(rows: Iterable[tuple[int, int]], until_ms: int) -> int | None:
    """The last of the oldest rows (number, time) that may go, or None. A row stays if one before it stays."""
    last = None
    for seq, at_ms in rows:
        if at_ms >= until_ms:
            break
        last = seq
    return last


def _forget(db: sqlite3.Connection, until_ms: int, batch: int) -> int:
    """Ended sandboxes, longest ago first. Their events are nobody's from here on."""
    rows = db.execute(
        "SELECT id FROM sandboxes WHERE ended_ms < ? ORDER BY ended_ms LIMIT ?", (until_ms, batch)
    ).fetchall()
    ids = [(row[0],) for row in rows]
    db.executemany("INSERT OR IGNORE INTO forgotten (stream) VALUES (?)", ids)
    db.executemany("DELETE FROM sandboxes WHERE id = ?", ids)
    return len(ids)


def _forget_tasks(db: sqlite3.Connection, until_ms: int, batch: int) -> int:
    """Tasks of which nothing is left to do, longest ago first. What belongs to a row goes with it."""
    rows = db.execute(
        "SELECT id FROM tasks WHERE ended_ms < ? AND phase = 'done' ORDER BY ended_ms LIMIT ?", (until_ms, batch)
    ).fetchall()
    ids = [(row[0],) for row in rows]
    for table, column in (("forgotten", "stream"), ("forgotten_files", "task")):
        db.executemany(f"INSERT OR IGNORE INTO {table} ({column}) VALUES (?)", ids)  # noqa: S608 — constants
    db.executemany("DELETE FROM tasks WHERE id = ?", ids)
    return len(ids)


def forgotten_files(db: sqlite3.Connection) -> list[str]:
    """Tasks that are forgotten and whose files may still be there."""
    return [row[0] for row in db.execute("SELECT task FROM forgotten_files LIMIT ?", (BATCH,))]


def removed_files(db: sqlite3.Connection, ids: Iterable[str]) -> None:
    db.executemany("DELETE FROM forgotten_files WHERE task = ?", [(each,) for each in ids])


def _remove_forgotten(db: sqlite3.Connection, batch: int) -> int:
    removed = db.execute(
        "DELETE FROM events WHERE id IN (SELECT e.id FROM forgotten f JOIN events e ON e.stream = f.stream LIMIT ?)",
        (batch,),
    ).rowcount
    if removed < batch:  # that was all
        db.execute("DELETE FROM forgotten")
    return removed


def _remove_runs(db: sqlite3.Connection, until_ms: int, batch: int) -> int:
    return db.execute(
        "DELETE FROM usage WHERE (sandbox, run) IN (SELECT sandbox, run FROM usage WHERE ended_ms < ? LIMIT ?)",
        (until_ms, batch),
    ).rowcount


def _remove_repeats(db: sqlite3.Connection, until_ms: int, batch: int) -> int:
    keys = db.execute(
        "DELETE FROM repeats WHERE (owner, key) IN (SELECT owner, key FROM repeats WHERE at_ms <= ? LIMIT ?)",
        (until_ms, batch),
    ).rowcount
    replies = db.execute(
        "DELETE FROM replies WHERE sandbox IN (SELECT sandbox FROM replies WHERE at_ms <= ? LIMIT ?)",
        (until_ms, batch - keys),
    ).rowcount
    return keys + replies


def _remove_proxies(db: sqlite3.Connection, until_ms: int, batch: int) -> int:
    return db.execute(
        "DELETE FROM proxies WHERE proxy IN (SELECT proxy FROM proxies WHERE at_ms < ? LIMIT ?)", (until_ms, batch)
    ).rowcount


def _remove_closed_books(db: sqlite3.Connection, until_ms: int, batch: int) -> int:
    """The rows of closed books, and then the books. What they told of has been counted elsewhere for long."""
    closed = "SELECT owner FROM books WHERE state = 'closed' AND at_ms < ?"
    removed = db.execute(
        "DELETE FROM reservations WHERE (owner, id) IN"  # noqa: S608 — constants
        f" (SELECT owner, id FROM reservations WHERE owner IN ({closed}) LIMIT ?)",
        (until_ms, batch),
    ).rowcount
    if removed < batch:  # that was all
        db.execute("DELETE FROM books WHERE state = 'closed' AND at_ms < ?", (until_ms,))
    return removed


def _cut_audit(db: sqlite3.Connection, until_ms: int, batch: int) -> int:
    rows = db.execute("SELECT seq, at_ms FROM audit ORDER BY seq LIMIT ?", (batch,)).fetchall()
    last = cut([(row[0], row[1]) for row in rows], until_ms)
    if last is None:
        return 0
    db.execute("UPDATE audit_anchor SET (seq, hash) = (SELECT seq, hash FROM audit WHERE seq = ?)", (last,))
    return db.execute("DELETE FROM audit WHERE seq <= ?", (last,)).rowcount
