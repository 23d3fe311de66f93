"""The rules that an owner's sandboxes get where a request does not say."""

from dataclasses import asdict

from contract.models import RulesAsked
from poold.ledger import audit
from poold.ledger.driver import sqlite3


def get(db: sqlite3.Connection, owner: str) -> RulesAsked:
    """The owner's rules; of one who has said nothing, no rule at all."""
    row = db.execute("SELECT * FROM rules WHERE owner = ?", (owner,)).fetchone()
    if row is None:
        return RulesAsked()
    return RulesAsked(
        timeout_sec=row["timeout_sec"],
        on_timeout=row["on_timeout"],
        idle_sec=row["idle_sec"],
        hibernate_sec=row["hibernate_sec"],
        hibernate_kind=row["hibernate_kind"],
        paused_sec=row["paused_sec"],
        auto_resume=None if row["auto_resume"] is None else bool(row["auto_resume"]),
    )


def put(db: sqlite3.Connection, owner: str, asked: RulesAsked, *, now_ms: int, request: str | None = None) -> None:
    """Replace the owner's rules, all of them. Sandboxes that are there keep theirs."""
    said = asdict(asked)
    db.execute(
        "INSERT OR REPLACE INTO rules"
        " (owner, timeout_sec, on_timeout, idle_sec, hibernate_sec, hibernate_kind, paused_sec, auto_resume) VALUES"
        " (:owner, :timeout_sec, :on_timeout, :idle_sec, :hibernate_sec, :hibernate_kind, :paused_sec, :auto_resume)",
        {"owner": owner, **said},
    )
    audit.add(db, audit.Entry(at_ms=now_ms, action="owner.rules", owner=owner, request=request, detail=said))
