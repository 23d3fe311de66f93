"""What each owner used: one row for each time that a sandbox ran, the last one open while it runs."""

from dataclasses import dataclass
from typing import Any

from contract.errors import NotFound
from contract.models import Sandbox
from poold.ledger.driver import sqlite3


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of an owner's runs, the open ones counted until now."""

    owner: str
    runs: int
    vcpu_s: float
    gib_s: float
    egress_bytes: int

    def view(self) -> dict[str, Any]:
        """The reply's JSON."""
        return {
            "owner": self.owner,
            "runs": self.runs,
            "vcpu_s": self.vcpu_s,
            "gib_s": self.gib_s,
            "egress_bytes": self.egress_bytes,
        }


def begin(db: sqlite3.Connection, sandbox: Sandbox, *, now_ms: int) -> None:
    """The sandbox runs from now on."""
    db.execute(
        "INSERT INTO usage (sandbox, run, owner, vcpus, memory_mb, started_ms)"
        " SELECT :id, coalesce(max(run), 0) + 1, :owner, :vcpus, :memory_mb, :now FROM usage WHERE sandbox = :id",
        {
            "id": sandbox.id,
            "owner": sandbox.owner,
            "vcpus": sandbox.shape.vcpus,
            "memory_mb": sandbox.shape.memory_mb,
            "now": now_ms,
        },
    )


def end(db: sqlite3.Connection, sandbox_id: str, *, now_ms: int) -> None:
    """It does not run any more. A clock that was put back makes a run of no length, never of a negative one."""
    db.execute(
        "UPDATE usage SET ended_ms = max(started_ms, ?) WHERE sandbox = ? AND ended_ms IS NULL", (now_ms, sandbox_id)
    )


def add_egress(db: sqlite3.Connection, sandbox_id: str, count: int) -> None:
    """`count` more bytes left the sandbox in its newest run, which may have ended meanwhile."""
    changed = db.execute(
        # Never more than fits: what comes from a proxy may be a lie, and a number too large is an error to SQLite.
        "UPDATE usage SET egress_bytes = min(egress_bytes + :count, 1 << 53) WHERE sandbox = :id"
        " AND run = (SELECT max(run) FROM usage WHERE sandbox = :id)",
        {"id": sandbox_id, "count": count},
    )
    if not changed.rowcount:
        raise NotFound(f"sandbox {sandbox_id!r} never ran on this host", sandbox=sandbox_id)


def totals(db: sqlite3.Connection, owner: str | None = None, *, now_ms: int) -> list[Total]:
    """The sums of all owners, or of one, in the order of their names. Who used nothing is not in it."""
    rows = db.execute(
        "SELECT owner, count(*), sum(vcpus * ms) / 1000.0, sum(memory_mb * ms) / 1024000.0, sum(egress_bytes)"
        " FROM (SELECT *, max(0, coalesce(ended_ms, :now) - started_ms) AS ms FROM usage"
        "       WHERE :owner IS NULL OR owner = :owner)"
        " GROUP BY owner ORDER BY owner",
        {"now": now_ms, "owner": owner},
    )
    return [Total(*row) for row in rows]
