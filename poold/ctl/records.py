"""`pooldctl audit` and `pooldctl ledger`: what the host has written down, and whether it is whole."""

import json
import os
from typing import Any

from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.ids import resolve
from poold.ctl.tail import Rows, last_rows
from warren_console.output import moment
from warren_console.text import size

AUDIT_TITLES = (">SEQ", "AT", "OWNER", "SANDBOX", "ACTION", ">EXIT", ">TOOK", ">BYTES", "DETAIL")


def audit_ls(context: Context) -> int:
    asked, out = context.asked, context.out
    sandbox = None if asked.sandbox is None else resolve(context.poold, asked.sandbox)
    count = asked.lines

    def fetch(after: int) -> Rows:
        rows: Rows = context.poold.get(
            "/admin/audit", after=after, limit=count, sandbox=sandbox, owner=asked.owner, action=asked.action
        )["rows"]
        return rows

    rows = last_rows(fetch, count)
    if out.as_json:
        out.json({"rows": rows})
    else:
        out.table(AUDIT_TITLES, [_cells(row) for row in rows])
    return errors.DONE


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    took = row.get("duration_ms")
    return (
        row["seq"],
        moment(row["at_ms"]),
        row["owner"],
        row.get("sandbox") or "-",
        row["action"],
        "-" if row.get("exit_code") is None else row["exit_code"],
        "-" if took is None else f"{took / 1000:.3f}s",
        "-" if row.get("bytes") is None else size(row["bytes"]),
        _detail(row.get("detail")),
    )


def _detail(detail: Any) -> str:
    """Compact JSON, without what says nothing."""
    if not isinstance(detail, dict):
        return str(detail or "")
    told = {name: value for name, value in detail.items() if value is not None}
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")) if told else ""


def audit_verify(context: Context) -> int:
    """Exits with 1 if the log is not what was written."""
    found = context.poold.get("/admin/audit/verify")
    if context.out.as_json:
        context.out.json(found)
    elif found["ok"]:
        context.out.line(f"ok: {found['rows']} rows ({found['first']} to {found['last']}), each as it was written")
    else:
        context.out.line(f"BROKEN at row {found['broken_at']}: {found['why']}")
    return errors.DONE if found["ok"] else errors.FAILED


def ledger_backup(context: Context) -> int:
    path = os.path.abspath(context.asked.path)  # noqa: PTH100 — poold works in another folder; links stay as typed
    made = context.poold.call("POST", "/admin/ledger/backup", {"path": path})
    if context.out.as_json:
        context.out.json(made)
    else:
        context.out.line(f"{made['path']} {size(made['bytes'])}")
    return errors.DONE


def ledger_check(context: Context) -> int:
    """Exits with 1 if the ledger is damaged."""
    found = context.poold.get("/admin/ledger/check")
    if context.out.as_json:
        context.out.json(found)
    elif found["ok"]:
        context.out.line(f"ok: version {found['version']}, {size(found['bytes'])}")
    else:
        for problem in found["problems"]:
            context.out.line(f"problem: {problem}")
    return errors.DONE if found["ok"] else errors.FAILED
