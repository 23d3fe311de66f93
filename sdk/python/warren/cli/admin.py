"""`warren hosts`, `usage` and `keys`: what there is, what was used, and who may use it."""

import time
from dataclasses import asdict
from typing import Any

from warren.cli import errors, network
from warren.cli.context import Context
from warren.cli.errors import NoSuchThing, UsageError
from warren.cli.program import say
from warren.models import Key, NewKey
from warren_console.network import in_short
from warren_console.output import moment
from warren_console.text import megabytes, span

HOST_TITLES = ("NAME", "STATE", ">SLOTS FREE", ">MEMORY FREE", "IMAGES", "VERSION", "ADDRESS")
KEY_TITLES = ("ID", "OWNER", "NAME", "PLAN", "SCOPES", ">RATE", "CREATED", "EXPIRES", "ACTIVE", "NETWORK")
USAGE_TITLES = {"vcpu_s": "VCPU SECONDS", "gib_s": "GIB SECONDS"}
DAY_MS = 86_400_000
MIN_CHARS = 6  # of a key's id


def hosts(context: Context) -> int:
    rows = context.warren.hosts()
    if context.out.as_json:
        context.out.json({"hosts": rows})
    else:
        context.out.table(HOST_TITLES, [_host(row) for row in rows])
    return errors.DONE


def _host(row: dict[str, Any]) -> tuple[object, ...]:
    slots, memory = row.get("slots") or {}, row.get("memory_mb") or {}
    images = {str(shape.get("image")) for shape in row.get("images") or ()}
    return (
        row.get("name", "-"),
        _host_state(row),
        f"{slots.get('free', '-')} of {slots.get('all', '-')}",
        f"{megabytes(memory.get('free'))} of {megabytes(memory.get('all'))}",
        " ".join(sorted(images)),
        row.get("version", "-"),
        row.get("address", "-"),
    )


def _host_state(row: dict[str, Any]) -> str:
    if row.get("health", "alive") != "alive":
        return str(row["health"])
    if row.get("draining"):
        return "draining"
    return "ready" if row.get("ready", True) else "full"


def usage(context: Context) -> int:
    told = context.warren.usage(context.asked.owner)
    if context.out.as_json:
        context.out.json(told)
    else:
        _usage_table(context, told.get("owners") or [])
        if told.get("incomplete"):
            say(f"that is not all: {', '.join(map(str, told['incomplete']))} cannot be asked")
    return errors.DONE


def _usage_table(context: Context, rows: list[dict[str, Any]]) -> None:
    """Whatever the hosts count, a column each."""
    names = sorted({name for row in rows for name in row if name != "owner"})
    titles = ["OWNER", *(f">{USAGE_TITLES.get(name) or name.replace('_', ' ').upper()}" for name in names)]
    context.out.table(titles, [[row.get("owner", "-"), *(_number(row.get(name)) for name in names)] for row in rows])


def _number(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else "-"


def keys_ls(context: Context) -> int:
    keys = context.warren.keys.list()
    if context.out.as_json:
        context.out.json({"keys": [asdict(key) for key in keys]})
    else:
        context.out.table(KEY_TITLES, [_cells(key) for key in keys])
    return errors.DONE


def _cells(key: Key) -> tuple[object, ...]:
    return (
        key.id[:12],
        key.owner,
        key.name or "-",
        key.plan or "-",
        " ".join(key.scopes),
        key.rate,
        moment(key.created_ms),
        moment(key.expires_ms),
        "yes" if key.active else "no",
        in_short(None if key.network is None else asdict(key.network)),
    )


def keys_create(context: Context) -> int:
    asked = context.asked
    fields = {"name": asked.name, "plan": asked.plan, "rate": asked.rate, "scopes": asked.scope or None}
    pools = {name: getattr(asked, name) for name in ("vcpus", "memory_mb", "disk_mb")}
    fields["pools"] = {name: value for name, value in pools.items() if value is not None} or None
    fields["network"] = network.asked(context)
    if asked.expires is not None:
        fields["expires_ms"] = time.time_ns() // 1_000_000 + asked.expires * DAY_MS
    given = {name: value for name, value in fields.items() if value is not None}
    return _show_secret(context, context.warren.keys.create(asked.owner, **given))


def keys_rotate(context: Context) -> int:
    old, grace_s = _whole_id(context), context.asked.grace
    code = _show_secret(context, context.warren.keys.rotate(old, grace_s))
    say(f"{old[:12]} ends {f'in {span(grace_s)}' if grace_s else 'now'}")
    return code


def keys_revoke(context: Context) -> int:
    key = _whole_id(context)
    context.warren.keys.revoke(key)
    if context.out.as_json:
        context.out.json({"id": key, "active": False})
    else:
        context.out.line(f"{key[:12]} revoked")
    return errors.DONE


def _show_secret(context: Context, made: NewKey) -> int:
    if context.out.as_json:
        context.out.json({"key": asdict(made.key), "secret": made.secret})
    else:
        say(f"key {made.key.id[:12]} of {made.key.owner}; its secret is shown this once:")
        context.out.line(made.secret)
    return errors.DONE


def _whole_id(context: Context) -> str:
    """A key's id by its first characters."""
    typed = context.asked.key
    if len(typed) == 64:
        return str(typed)
    found = [key.id for key in context.warren.keys.list() if key.id.startswith(typed)]
    if len(typed) < MIN_CHARS or len(found) > 1:
        raise UsageError(f"{typed!r} could be more than one key: give at least {MIN_CHARS} characters of its id")
    if not found:
        raise NoSuchThing(f"there is no key {typed!r}", hint="see `warren keys ls`")
    return found[0]
