"""`pooldctl sandboxes`: list, show, create, rm, pause, hibernate, resume, timeout, logs."""

from collections.abc import Callable
from typing import Any

from contract.states import State
from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.errors import CtlError
from poold.ctl.ids import resolve
from poold.ctl.network import network_asked
from poold.ctl.parser import RULES
from poold.ctl.program import say
from warren_console.network import in_short
from warren_console.output import moment
from warren_console.text import clean_lines, megabytes, pairs, relative, shape, span

TITLES = ("ID", "STATE", "IMAGE", ">VCPUS", ">MEMORY", "CREATED", "NEXT", "OWNER", "NOTE")
Row = dict[str, Any]


def ls(context: Context) -> int:
    asked, out = context.asked, context.out
    state = asked.state or (",".join(State) if asked.all else None)
    rows = context.poold.pages("/v1/sandboxes", "sandboxes", state=state)
    if out.as_json:
        out.json({"sandboxes": list(rows)})
    elif asked.quiet:
        for row in rows:
            out.line(row["id"])
    else:
        out.table(TITLES, [_cells(row, out.now_ms) for row in rows])
    return errors.DONE


def _cells(row: Row, now_ms: int) -> tuple[object, ...]:
    return (
        row["id"],
        row["state"],
        row["image"],
        row["vcpus"],
        megabytes(row["memory_mb"]),
        relative(row["created_ms"], now_ms),
        next_step(row.get("next"), now_ms),
        row.get("owner", "-"),
        row.get("reason") or pairs(row.get("metadata") or {}),
    )


def next_step(step: Row | None, now_ms: int) -> str:
    """What will happen to a sandbox by itself: `pause in 3m (idle)`."""
    if step is None:
        return "-"
    at = "now" if step["at_ms"] <= now_ms else relative(step["at_ms"], now_ms)
    return f"{step['action']} {at} ({step['why']})"


def show(context: Context) -> int:
    out = context.out
    row = context.poold.get(_path(context, context.asked.sandbox))
    if out.as_json:
        out.json(row)
        return errors.DONE
    times = ("created", "started", "paused", "ended", *(() if row.get("ended_ms") else ("expires",)))
    out.facts(
        {
            "id": row["id"],
            "state": row["state"],
            "reason": row.get("reason") or "-",
            "owner": row.get("owner", "-"),
            "image": row["image"],
            "size": shape(row["vcpus"], row["memory_mb"], row["disk_mb"]),
            **{name: time_of(row.get(f"{name}_ms"), out.now_ms) for name in times},
            "next": next_step(row.get("next"), out.now_ms),
            "rules": rules_text(row.get("rules") or {}),
            "network": in_short(row.get("network")),
            **{f"metadata {name}": value for name, value in (row.get("metadata") or {}).items()},
        }
    )
    return errors.DONE


def time_of(at_ms: int | None, now_ms: int) -> str:
    return "-" if at_ms is None else f"{moment(at_ms)} ({relative(at_ms, now_ms)})"


def rules_text(rules: Row) -> str:
    """Rules as a sentence."""
    said = []
    if rules.get("timeout_sec") is not None:
        said.append(f"{rules.get('on_timeout') or 'destroy'} after {span(rules['timeout_sec'])}")
    if rules.get("idle_sec") is not None:
        said.append(f"pause when idle for {span(rules['idle_sec'])}")
    if rules.get("hibernate_sec") is not None:
        what = "its files alone " if rules.get("hibernate_kind") == "files" else ""
        said.append(f"hibernate {what}when paused for {span(rules['hibernate_sec'])}")
    if rules.get("paused_sec") is not None:
        said.append(f"destroy when paused for {span(rules['paused_sec'])}")
    if rules.get("auto_resume"):
        said.append("resume on the next request")
    return ", ".join(said) or "-"


def create(context: Context) -> int:
    asked, out = context.asked, context.out
    fields = {name: getattr(asked, name) for name in ("image", "vcpus", "memory_mb", "disk_mb", *RULES)}
    fields |= {"env": dict(asked.env), "metadata": dict(asked.metadata), "network": network_asked(asked)}
    given = {name: value for name, value in fields.items() if value not in (None, {})}
    row = context.poold.call("POST", "/v1/sandboxes", given)
    if out.as_json:
        out.json(row)
    else:
        out.line(row["id"])
    return errors.DONE


def rm(context: Context) -> int:
    return _each(context, lambda path: context.poold.call("DELETE", path))


def pause(context: Context) -> int:
    return _each(context, lambda path: context.poold.call("POST", f"{path}/pause"))


def hibernate(context: Context) -> int:
    kind = "files" if context.asked.files else "machine"
    return _each(context, lambda path: context.poold.call("POST", f"{path}/hibernate", {"kind": kind}))


def resume(context: Context) -> int:
    return _each(context, lambda path: context.poold.call("POST", f"{path}/resume"))


def timeout(context: Context) -> int:
    path, body = _path(context, context.asked.sandbox), {"timeout_sec": context.asked.seconds}
    row = context.poold.call("POST", f"{path}/timeout", body)
    if context.out.as_json:
        context.out.json(row)
    else:
        context.out.line(f"{row['id']} {next_step(row.get('next'), context.out.now_ms)}")
    return errors.DONE


def _each(context: Context, act: Callable[[str], Row]) -> int:
    """Do it to every sandbox that was named. One that fails is told and does not keep the others from it."""
    rows: list[Row] = []
    code = errors.DONE
    for typed in context.asked.sandboxes:
        try:
            row = act(_path(context, typed))
        except errors.Unreachable:
            raise
        except CtlError as error:
            say(f"{typed}: {error.message}")
            code = code or error.exit_code
            continue
        rows.append(row)
        if not context.out.as_json:
            context.out.line(f"{row['id']} {row['state']}")
    if context.out.as_json:
        context.out.json({"sandboxes": rows})
    return code


def logs(context: Context) -> int:
    out = context.out
    text = context.poold.text(f"{_path(context, context.asked.sandbox)}/logs", lines=context.asked.lines)
    if out.as_json:
        out.json({"lines": text.splitlines()})
    else:
        out.raw(clean_lines(text) + ("\n" if text and not text.endswith("\n") else ""))
    return errors.DONE


def _path(context: Context, typed: str) -> str:
    return f"/v1/sandboxes/{resolve(context.poold, typed)}"
