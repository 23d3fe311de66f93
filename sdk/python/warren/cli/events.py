"""`warren events`: what happened to a sandbox, and what happens.

Programs (`--json`) get all of it. People get what matters of it; what a guest told may be anything, of any type.
"""

import json
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from warren.cli import errors
from warren.cli.context import Context
from warren.cli.egress import target
from warren.cli.ids import find
from warren.models import Event
from warren_console.output import moment
from warren_console.text import clean, cut, span

TITLES = (">SEQ", "AT", "KIND", "BY", "DATA")
KIND_COLUMNS = 16
MAX_MS = 1 << 47  # some thousand years
EGRESS = {"egress_refused": ("via", "why", "times"), "egress_waiting": ("until_ms",)}  # and what is told besides
NARROW = 80  # columns; with fewer there is no room for the date


def events(context: Context) -> int:
    """With `--follow` until the sandbox has ended."""
    asked, out = context.asked, context.out
    sandbox = find(context.warren, asked.sandbox)
    if asked.follow:
        for event in sandbox.events(asked.after):
            _print_line(context, event)
        return errors.DONE
    found = list(sandbox.events(asked.after, follow=False))
    if out.as_json:
        out.json({"events": [asdict(event) for event in found]})
    else:
        out.table(TITLES, [_cells(event, out.columns) for event in found])
    return errors.DONE


def _print_line(context: Context, event: Event) -> None:
    """One event as it comes: the columns cannot know what follows."""
    out = context.out
    if out.as_json:
        out.json_line(asdict(event))
        return
    seq, at, kind, by, data = _cells(event, out.columns)
    out.line(cut(clean(f"{seq:>5}  {at}  {kind:<{KIND_COLUMNS}}  {by:<5}  {data}".rstrip()), out.columns))


def _cells(event: Event, columns: int) -> tuple[int, str, str, str, str]:
    clock = time.strftime("%H:%M:%S", time.localtime(event.at_ms / 1000))
    at = clock if columns < NARROW else moment(event.at_ms)
    return event.seq, at, event.kind, event.by, told(event.kind, event.data)


def told(kind: str, data: Mapping[str, Any]) -> str:
    """What an event says, for people: `sh -c 'make test' (pid 163)`, `exit 0 in 0.2s (pid 163)`, `port=80`."""
    if kind == "process_started" and "cmd" in data:
        return f"{_command(data)} ({_who(data)})"
    if kind == "process_ended" and "pid" in data:
        return f"{_end(data)} ({_who(data)})"
    if kind in EGRESS and ("name" in data or "address" in data):
        return " ".join([target(data), *_pairs({name: value for name, value in data.items() if name in EGRESS[kind]})])
    shown = {name: value for name, value in data.items() if (name, value) != ("state", kind)}
    return " ".join(_pairs(shown))


def _command(data: Mapping[str, Any]) -> str:
    args = data.get("args")
    words = [data["cmd"], *(args if isinstance(args, list | tuple) else ())]
    return shlex.join(map(str, words))


def _who(data: Mapping[str, Any]) -> str:
    user = data.get("user")
    return f"pid {data.get('pid')}" + (f", {user}" if user else "")


def _end(data: Mapping[str, Any]) -> str:
    how = str(data["signal"]) if data.get("signal") else f"exit {data.get('exit_code')}"
    duration_ms: Any = data.get("duration_ms")
    if not _is_time(duration_ms):
        return how
    seconds = duration_ms / 1000
    return f"{how} in {span(seconds) if seconds >= 60 else f'{seconds:.1f}s'}"


def _is_time(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < MAX_MS


def _pairs(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Without what is not said, and without the time, which has a column of its own."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _pairs(value, f"{prefix}{name}.")
        elif name in ("expires_ms", "until_ms") and _is_time(value):
            yield f"{prefix}{name.removesuffix('_ms')}={moment(value)}"
        elif name != "at_ms" and value not in (None, [], ()):
            yield f"{prefix}{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
