"""`pooldctl ledger status`, `restore` and `accept`: the ledger's replica, a ledger made from it, and which will do."""

import json
import os
import subprocess
import sys
from typing import Any

from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.errors import CtlError, Unreachable, UsageError
from warren_console.text import relative, size


def status(context: Context) -> int:
    out = context.out
    told = context.poold.get("/admin/ledger")
    if out.as_json:
        out.json(told)
    else:
        out.facts(_facts(told, out.now_ms))
    return errors.DONE


def _facts(told: dict[str, Any], now_ms: int) -> dict[str, str]:
    modes = {"replicated": "acknowledged when the store has it", "local": "acknowledged when this host's disk has it"}
    facts = {
        "ledger": f"{told['path']}, {size(told['bytes'])} + {size(told['wal_bytes'])} not merged yet",
        "durability": f"{told['durability']}: {modes[told['durability']]}",
    }
    replica = told["replica"]
    if replica is None:
        return {**facts, "replica": "none: POOLD_STORE is not set"}
    litestream = replica["litestream"]
    running = "not running" if litestream["pid"] is None else f"pid {litestream['pid']}"
    return {
        **facts,
        "replica": replica["where"],
        "state": "up to date" if replica["up"] else f"behind: {replica['why']}",
        "lag": f"{told['lag_s']:.1f} s",
        "last sync": "never" if replica["synced_ms"] is None else relative(replica["synced_ms"], now_ms),
        "litestream": f"{litestream['version'] or 'does not answer'}, {running}, {litestream['restarts']} restarts",
    }


def restore(context: Context) -> int:
    """Exits with 1 if there is nothing to restore, or if it is not a whole ledger."""
    asked, out = context.asked, context.out
    if asked.to is None and not asked.verify:
        raise UsageError("say --to FILE, for a ledger to keep, or --verify, for a look whether there could be one")
    found = _drilled(context)
    if out.as_json:
        out.json(found)
    elif found["ok"]:
        kept = f"{found['path']}: " if found["path"] else ""
        out.line(f"ok: {kept}{size(found['bytes'])}, made in {found['took_s']:.1f} s, {_extent(found)}")
    else:
        raise CtlError(found["why"])
    return errors.DONE if found["ok"] else errors.FAILED


def _extent(found: dict[str, Any]) -> str:
    told = f"{found['events']} events and {found['audit']} audit rows so far"
    if found["behind"] is None:
        return told
    if not any(found["behind"].values()):
        return f"{told}, as many as the ledger had when this began"
    return f"{told}; behind the ledger by {found['behind']['events']} and {found['behind']['audit']}"


def _drilled(context: Context) -> dict[str, Any]:
    """What the program that knows ledgers came to. Without --from it is this host's own replica, as poold tells."""
    where, live = context.asked.where, []
    if where is None:
        told = context.poold.get("/admin/ledger")
        if told["replica"] is None:
            raise CtlError("this host's ledger has no replica", hint="say --from, or set POOLD_STORE for poold")
        where, live = told["replica"]["where"], ["--ledger", told["path"]]
    to = [] if context.asked.to is None else ["--to", os.path.abspath(context.asked.to)]  # noqa: PTH100 — as typed
    return _program("--from", where, *to, *live)


def accept(context: Context) -> int:
    """An operator's word that an older epoch's ledger is to do: what was acknowledged after it is given up."""
    asked, out = context.asked, context.out
    state_dir = asked.state_dir or _state_dir(context)
    found = _program(f"--accept={asked.host}", f"--epoch={asked.epoch}", f"--state-dir={state_dir}")
    if not found["ok"]:
        raise CtlError(found["why"])
    if out.as_json:
        out.json({"host": asked.host, "epoch": asked.epoch, "path": found["path"]})
    else:
        what = f"epoch {asked.epoch}" if asked.epoch else "no ledger at all"
        out.line(f"{what} will do for host {asked.host} when it is next tried: {found['path']}")
    return errors.DONE


def _state_dir(context: Context) -> str:
    """Of the poold here. One that cannot restore its own ledger does not serve yet, and cannot tell."""
    try:
        path: str = context.poold.get("/admin/ledger")["path"]
    except Unreachable as error:
        raise Unreachable(error.message, hint="a poold that waits for its ledger: say its --state-dir") from None
    return os.path.dirname(path)  # noqa: PTH120 — as told


def _program(*words: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "poold.drill", *words]
    done = subprocess.run(argv, check=False, stdout=subprocess.PIPE)
    if done.returncode:
        raise CtlError("the restore ended before it could say what it found")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
