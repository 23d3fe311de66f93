"""`pooldctl status`: how the host is doing, on one screen."""

from typing import Any

from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.pool import SHARE_TITLES, share_cells
from warren_console.text import megabytes, relative, size, span


def show(context: Context) -> int:
    out = context.out
    status = context.poold.get("/admin/status")
    if out.as_json:
        out.json(status)
        return errors.DONE
    out.facts(_facts(status, out.now_ms))
    if status["pool"]:
        out.line()
        out.table(SHARE_TITLES, [share_cells(share) for share in status["pool"]])
    return errors.DONE


def _facts(status: dict[str, Any], now_ms: int) -> dict[str, str]:
    slots, memory, ledger = status["slots"], status["memory"], status["ledger"]
    counts = [f"{count} {state}" for state, count in status["sandboxes"].items() if count]
    return {
        "poold": f"{status['version']}, up {span((now_ms - status['started_ms']) / 1000)}",
        "state": _state(status),
        "engine": f"{status['engine']} ({status['accel']})",
        "sandboxes": ", ".join(counts) or "none",
        "slots": f"{slots['free']} of {slots['all']} free",
        "memory": f"{megabytes(memory['left_mb'])} of {megabytes(memory['budget_mb'])} left",
        "ledger": f"{ledger['path']}, {size(ledger['bytes'])} + {size(ledger['wal_bytes'])} not merged yet",
        "store": _store(status.get("store")),
        "recovery": _recovery(status.get("recovery"), now_ms),
    }


def _state(status: dict[str, Any]) -> str:
    if status["draining"]:
        return "draining: it takes no new sandboxes (pooldctl undrain)"
    if status.get("pressure"):
        return f"under pressure: {status['pressure']['message']}"
    return "serving" if status["serving"] else "starting"


def _store(store: dict[str, Any] | None) -> str:
    return "-" if store is None else f"{store['place']}, cluster {store['cluster']}"


def _recovery(recovery: dict[str, Any] | None, now_ms: int) -> str:
    """What was found at the last start, and what was done about it."""
    if not recovery or recovery.get("at_ms") is None:
        return "-"
    found = [f"{len(recovery[name])} {name}" for name in ("adopted", "undone", "lost", "removed") if recovery.get(name)]
    return f"{', '.join(found) or 'nothing to do'} ({relative(recovery['at_ms'], now_ms)})"
