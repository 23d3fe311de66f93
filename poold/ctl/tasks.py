"""`pooldctl tasks`: list, show, stop."""

from typing import Any

from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.errors import CtlError
from poold.ctl.program import say
from poold.ctl.sandboxes import time_of
from warren_console.text import relative, span

TITLES = ("ID", "STATE", "AGENT", ">STEPS", ">USD", "TIME", "CREATED", "OWNER", "NOTE")
Row = dict[str, Any]


def ls(context: Context) -> int:
    asked, out = context.asked, context.out
    rows = context.poold.pages("/v1/tasks", "tasks", state=asked.state)
    if out.as_json:
        out.json({"tasks": list(rows)})
    elif asked.quiet:
        for row in rows:
            out.line(row["id"])
    else:
        out.table(TITLES, [_cells(row, out.now_ms) for row in rows])
    return errors.DONE


def _cells(row: Row, now_ms: int) -> tuple[object, ...]:
    usage = row["usage"]
    return (
        row["id"],
        row["state"],
        row["agent"],
        usage["steps"],
        _usd(usage),
        span(usage["wall_ms"] // 1000),
        relative(row["created_ms"], now_ms),
        row["owner"],
        _note(row),
    )


def _usd(usage: Row) -> str:
    if usage["usd"] is None:
        return "-"
    return f"{'~' if usage['usd_is_estimate'] else ''}{usage['usd']:.4f}"


def _note(row: Row) -> str:
    if row["waiting"]:
        return "waits: " + ", ".join(f"{each['id']} ({each['kind']})" for each in row["waiting"])
    if row["reason"]:
        return str(row["reason"]["message"])
    return str(row["prompt"]).split("\n", maxsplit=1)[0][:60]


def show(context: Context) -> int:
    out = context.out
    row = context.poold.get(f"/v1/tasks/{context.asked.task}")
    if out.as_json:
        out.json(row)
        return errors.DONE
    times = {name: time_of(row.get(f"{name}_ms"), out.now_ms) for name in ("created", "started", "ended")}
    result = row["result"] or {}
    out.facts(
        {
            "id": row["id"],
            "state": f"{row['state']} ({row['phase']})",
            "note": _note(row),
            "owner": row["owner"],
            "agent": row["agent"] if row["model"] is None else f"{row['agent']} {row['model']}",
            "repository": row["repo"] or "-",
            "branch": row["branch"] or "-",
            "sandbox": row["sandbox"] or "-",
            **times,
            "time": span(row["usage"]["wall_ms"] // 1000),
            "steps": row["usage"]["steps"],
            "tokens": f"{row['usage']['input_tokens']} in, {row['usage']['output_tokens']} out",
            "usd": _usd(row["usage"]),
            "commits": len(result.get("commits") or []),
            "pushed": (result.get("pushed") or {}).get("to") or "-",
        }
    )
    return errors.DONE


def stop(context: Context) -> int:
    """Every task that was named. One that fails is told and does not keep the others from it."""
    rows: list[Row] = []
    code = errors.DONE
    for typed in context.asked.tasks:
        try:
            rows.append(context.poold.call("POST", f"/v1/tasks/{typed}/stop"))
        except errors.Unreachable:
            raise
        except CtlError as error:
            say(f"{typed}: {error.message}")
            code = code or error.exit_code
            continue
        if not context.out.as_json:
            context.out.line(f"{typed} {rows[-1]['state']}")
    if context.out.as_json:
        context.out.json({"tasks": rows})
    return code
