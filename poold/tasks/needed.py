"""Whose secrets somebody may still need."""

from poold.ledger import webhooks
from poold.ledger.driver import Connection


class Either(set[str]):
    """Those of one set, and of another that may still grow."""

    def __init__(self, known: set[str], growing: set[str]) -> None:
        super().__init__(known)
        self._growing = growing

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._growing


def needed_secrets(db: Connection, since_ms: int) -> set[str]:
    """Tasks whose secrets somebody may still need."""
    rows = db.execute("SELECT id FROM tasks WHERE phase <> 'done' OR ended_ms >= ?", (since_ms,))
    return {row[0] for row in rows} | webhooks.waiting(db)
