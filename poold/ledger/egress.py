"""Connections of sandboxes: a row of the audit each, and what their proxies have told so far."""

import contextlib
from collections.abc import Collection, Sequence
from typing import Any

from contract.egress import Row
from contract.errors import NotFound
from poold.ledger import audit, sandboxes, usage
from poold.ledger.connect import Connection
from poold.ledger.driver import sqlite3

ACTIONS = {verdict: f"egress.{verdict}" for verdict in ("allowed", "refused")}


def stream_of(sandbox_id: str) -> str:
    """What changes whenever a connection of the sandbox is written down."""
    return f"egress {sandbox_id}"


def add(db: sqlite3.Connection, proxy: str, rows: Sequence[Row], told: Collection[int], *, now_ms: int) -> None:
    """Write rows of a proxy down, those that are not yet. Those at the places in `told` are events, too."""
    last = _last(db, proxy)
    for place, row in enumerate(rows):
        if row.sandbox is not None and (row.number == 0 or row.number > last):
            _add(db, row.sandbox, row, is_told=place in told)
    newest = max((row.number for row in rows), default=0)
    if newest > last:
        db.execute("INSERT OR REPLACE INTO proxies (proxy, number, at_ms) VALUES (?, ?, ?)", (proxy, newest, now_ms))


def listed(
    db: sqlite3.Connection, sandbox_id: str, *, after: int = 0, limit: int, verdict: str | None = None
) -> list[dict[str, Any]]:
    """The connections behind number `after`, in their order."""
    wanted = list(ACTIONS.values()) if verdict is None else [ACTIONS[verdict]]
    rows = db.execute(
        "SELECT seq, at_ms, detail FROM audit"  # noqa: S608 — only marks
        f" WHERE sandbox = ? AND seq > ? AND +action IN ({', '.join('?' * len(wanted))}) ORDER BY seq LIMIT ?",
        (sandbox_id, after, *wanted, limit),
    )
    return [{"seq": seq, "at_ms": at_ms, **audit.read_detail(detail)} for seq, at_ms, detail in rows]


def _last(db: sqlite3.Connection, proxy: str) -> int:
    row = db.execute("SELECT number FROM proxies WHERE proxy = ?", (proxy,)).fetchone()
    return 0 if row is None else int(row[0])


def _add(db: sqlite3.Connection, sandbox_id: str, row: Row, *, is_told: bool) -> None:
    try:
        owner = sandboxes.get(db, sandbox_id).owner
    except NotFound:
        return  # it never came to be
    view = row.view()
    entry = audit.Entry(
        at_ms=row.at_ms,
        action=ACTIONS[row.verdict],
        owner=owner,
        sandbox=sandbox_id,
        detail=view,
        duration_ms=row.duration_ms,
        bytes=row.up + row.down,
    )
    audit.add(db, entry)
    if row.up:
        with contextlib.suppress(NotFound):  # it has not begun to run, and may never: a creation can fail
            usage.add_egress(db, sandbox_id, row.up)
    if is_told:
        what = {name: view[name] for name in ("name", "address", "port", "via", "why", "times")}
        sandboxes.tell(db, sandbox_id, f"egress_{row.verdict}", what, at_ms=row.at_ms)
    if isinstance(db, Connection):
        db.touched.add(stream_of(sandbox_id))
