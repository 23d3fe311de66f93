"""`pooldctl events` and `pooldctl sandboxes events`: what happened, and what happens."""

import json
from collections.abc import Iterator
from typing import Any

from poold.ctl import errors
from poold.ctl.client import Event
from poold.ctl.context import Context
from poold.ctl.errors import Unreachable
from poold.ctl.ids import resolve
from poold.ctl.parser import MAX_PAGE
from poold.ctl.tail import Rows, last_rows
from warren_console.output import moment
from warren_console.text import cut

TITLES = ("AT", "STREAM", "KIND", "DATA")
KIND_COLUMNS = 18
Row = dict[str, Any]


def tail(context: Context) -> int:
    """The last events of the host, or of one sandbox; oldest first."""
    path = _path(context)
    return _print(context, _last(context, path, context.asked.lines))


def follow(context: Context) -> int:
    """Events from now on. Of one sandbox, until it has ended; of the host, until somebody has enough."""
    path = _path(context)
    query = {}
    if context.asked.sandbox is not None:
        last = _last(context, path, 1)
        query = {"after": last[-1]["seq"] if last else 0}
    _follow(context, path, query)
    if context.asked.sandbox is None:
        raise Unreachable("poold ended the stream", hint="it stops, or was too busy: pooldctl status")
    return errors.DONE


def of_sandbox(context: Context) -> int:
    path = f"/v1/sandboxes/{resolve(context.poold, context.asked.sandbox)}/events"
    rows = _all(context, path) if context.asked.lines is None else _last(context, path, context.asked.lines)
    if not context.asked.follow:
        return _print(context, rows)
    for row in rows:
        _print_line(context, row)
    _follow(context, path, {"after": rows[-1]["seq"] if rows else 0})
    return errors.DONE


def _path(context: Context) -> str:
    typed = context.asked.sandbox
    return "/admin/events" if typed is None else f"/v1/sandboxes/{resolve(context.poold, typed)}/events"


def _last(context: Context, path: str, count: int) -> Rows:
    def fetch(after: int) -> Rows:
        rows: Rows = context.poold.get(path, after=after, limit=count)["events"]
        return rows

    return last_rows(fetch, count)


def _all(context: Context, path: str) -> Rows:
    rows: Rows = []
    while True:
        page = context.poold.get(path, after=rows[-1]["seq"] if rows else 0, limit=MAX_PAGE)["events"]
        rows += page
        if len(page) < MAX_PAGE:
            return rows


def _follow(context: Context, path: str, query: dict[str, int]) -> None:
    with context.poold.stream("GET", path, query=query) as events:
        for row in _rows(events):
            _print_line(context, row)


def _rows(events: Iterator[Event]) -> Iterator[Row]:
    """The events themselves; a stream may also tell of itself, as of a gap."""
    for event in events:
        if isinstance(event.data, dict) and "at_ms" in event.data:
            yield {"kind": event.kind, **event.data}
        else:
            yield {"id": event.id, "stream": "-", "at_ms": None, "kind": event.kind, "data": event.data}


def _print(context: Context, rows: Rows) -> int:
    if context.out.as_json:
        context.out.json({"events": rows})
    else:
        context.out.table(TITLES, [_cells(row) for row in rows])
    return errors.DONE


def _print_line(context: Context, row: Row) -> None:
    """One event as it comes: the columns cannot know what follows."""
    if context.out.as_json:
        context.out.json_line(row)
    else:
        at, stream, kind, data = _cells(row)
        context.out.line(cut(f"{at}  {stream:<19}  {kind:<{KIND_COLUMNS}}  {data}".rstrip(), context.out.columns))


def _cells(row: Row) -> tuple[str, str, str, str]:
    data = row.get("data")
    shown = json.dumps(data, ensure_ascii=False) if data not in (None, {}) else ""
    return moment(row["at_ms"]), str(row.get("stream", "-")), str(row["kind"]), shown
