"""`warren create`, `ls`, `get`, `rm`, `pause`, `resume`, `hibernate`, `recover`, `timeout`, `logs`."""

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from warren.cli import errors, network
from warren.cli.context import Context
from warren.cli.ids import NAME, find, refuse_taken
from warren.cli.parser import STATES
from warren.cli.program import say
from warren.cli.progress import busy
from warren.cli.several import each_named
from warren.client import Sandbox
from warren.models import HeldWorkspace, Info
from warren_console.network import in_short
from warren_console.output import moment
from warren_console.text import clean_lines, fitted, megabytes, pairs, relative, shape, span

TITLES = ("ID", "NAME", "STATE", "IMAGE", ">VCPUS", ">MEMORY", "CREATED", "NEXT", "NOTE")
RULES = ("timeout_sec", "on_timeout", "idle_sec", "hibernate_sec", "hibernate_kind", "paused_sec", "auto_resume")
WATCH_S = 2.0
HOME_AND_CLEAR = "\x1b[H\x1b[J"


def create(context: Context) -> int:
    asked, out = context.asked, context.out
    fields = {name: getattr(asked, name) for name in ("vcpus", "memory_mb", "disk_mb", *RULES)}
    metadata = dict(asked.metadata) | ({NAME: asked.name} if asked.name else {})
    fields |= {"env": dict(asked.env), "metadata": metadata, "public_ports": asked.public_port}
    fields |= {"network": network.asked(context), "workspace": asked.workspace, "template": asked.template}
    given: Any = {name: value for name, value in fields.items() if value not in (None, {}, [])}
    if NAME in metadata:
        refuse_taken(context.warren, metadata[NAME])
    with busy("creating a sandbox"):
        sandbox = context.warren.create(asked.image, **given)
    if out.as_json:
        out.json(asdict(sandbox.info))
    else:
        out.line(sandbox.id)
    return errors.DONE


def ls(context: Context) -> int:
    while True:
        _list(context)
        if not context.asked.watch:
            return errors.DONE
        time.sleep(WATCH_S)


def _list(context: Context) -> None:
    asked, out = context.asked, context.out
    states = asked.state.split(",") if asked.state else STATES if asked.all else None
    listing = context.warren.sandboxes(states, dict(asked.metadata), asked.image, asked.owner)
    with busy("asking the hosts"):
        infos = [sandbox.info for sandbox in listing]
    if out.as_json:
        told = {"sandboxes": [asdict(info) for info in infos], "incomplete": sorted(listing.incomplete)}
        (out.json_line if asked.watch else out.json)(told)
    elif asked.quiet:
        for info in infos:
            out.line(info.id)
    else:
        lines = out.table_lines(TITLES, [_cells(info, out.now_ms) for info in infos])
        if asked.watch and out.is_terminal:
            # The cursor stands in a row of its own, and so does what is told below.
            lines = fitted(lines, out.rows - 1 - bool(listing.incomplete))
            out.raw(HOME_AND_CLEAR)
        out.raw("\n".join(lines) + "\n")
    if listing.incomplete:
        say(f"the list is not whole: {', '.join(sorted(listing.incomplete))} cannot be asked")


def _cells(info: Info, now_ms: int) -> tuple[object, ...]:
    metadata = dict(info.metadata)
    return (
        info.id,
        metadata.pop(NAME, "-"),
        info.state,
        info.image,
        info.vcpus,
        megabytes(info.memory_mb),
        relative(info.created_ms, now_ms),
        next_step(info, now_ms),
        info.reason or pairs(metadata),
    )


def next_step(info: Info, now_ms: int) -> str:
    """What will happen to a sandbox by itself: `pause in 3m (idle)`."""
    step = info.next
    if step is None:
        return "-"
    at = "now" if step["at_ms"] <= now_ms else relative(step["at_ms"], now_ms)
    return f"{step['action']} {at} ({step['why']})"


def get(context: Context) -> int:
    out = context.out
    info = find(context.warren, context.asked.sandbox).info
    if out.as_json:
        out.json(asdict(info))
        return errors.DONE
    names = ("created", "started", "paused", "ended", *(() if info.is_over else ("expires",)))
    times = {name: getattr(info, f"{name}_ms") for name in names}
    out.facts(
        {
            "id": info.id,
            "state": info.state,
            "reason": info.reason or "-",
            "owner": info.owner or "-",
            "image": info.image,
            "size": shape(info.vcpus, info.memory_mb, info.disk_mb),
            **{name: _time(at_ms, out.now_ms) for name, at_ms in times.items()},
            "next": next_step(info, out.now_ms),
            "rules": rules_text(info.rules),
            "workspace": workspace_text(info.workspace),
            "network": in_short(None if info.network is None else asdict(info.network)),
            "public ports": ", ".join(map(str, info.public_ports)) or "-",
            **{f"metadata {name}": value for name, value in info.metadata.items()},
        }
    )
    return errors.DONE


def workspace_text(held: HeldWorkspace | None) -> str:
    """`my-repl, from version 3, saved as version 4`"""
    if held is None:
        return "-"
    version, saved = held.from_version, held.saved_version
    words = [held.name or "not saved"]
    words += [] if version is None else [f"from version {version}"]
    words += [] if held.template is None else [f"from template {held.template}"]
    words += [] if held.name is None else [f"saved as version {saved}" if saved is not None else "nothing saved yet"]
    return ", ".join(words)


def _time(at_ms: int | None, now_ms: int) -> str:
    return "-" if at_ms is None else f"{moment(at_ms)} ({relative(at_ms, now_ms)})"


def rules_text(rules: Any) -> str:
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


def rm(context: Context) -> int:
    return _each(context, "removing", partial(Sandbox.kill, discard=context.asked.discard))


def pause(context: Context) -> int:
    return _each(context, "pausing", Sandbox.pause)


def resume(context: Context) -> int:
    return _each(context, "resuming", Sandbox.resume)


def hibernate(context: Context) -> int:
    kind = "files" if context.asked.files else "machine"
    return _each(context, "hibernating", lambda sandbox: sandbox.hibernate(kind))


def _each(context: Context, doing: str, act: Callable[[Sandbox], Info]) -> int:
    infos, code = each_named(
        context,
        context.asked.sandboxes,
        doing,
        lambda typed: act(find(context.warren, typed)),
        lambda info: f"{info.id} {info.state}{_saved_text(info)}",
    )
    if context.out.as_json:
        context.out.json({"sandboxes": [asdict(info) for info in infos]})
    return code


def _saved_text(info: Info) -> str:
    """What was saved of one that has ended or sleeps."""
    held = info.workspace
    is_told = held is not None and held.name and held.saved_version and info.state != "running"
    return f"  {held.name} version {held.saved_version}" if held is not None and is_told else ""


def timeout(context: Context) -> int:
    info = find(context.warren, context.asked.sandbox).extend(context.asked.seconds)
    if context.out.as_json:
        context.out.json(asdict(info))
    else:
        context.out.line(f"{info.id} {next_step(info, context.out.now_ms)}")
    return errors.DONE


def logs(context: Context) -> int:
    out = context.out
    text = find(context.warren, context.asked.sandbox).logs(context.asked.lines)
    if out.as_json:
        out.json({"lines": text.splitlines()})
    else:
        out.raw(clean_lines(text) + ("\n" if text and not text.endswith("\n") else ""))
    return errors.DONE
