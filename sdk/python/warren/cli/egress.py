"""`warren egress`: what a sandbox tried to reach, and what came of it.

A connection is told when it is over, or was refused. People see those that are open, too.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from warren.cli import errors
from warren.cli.context import Context
from warren.cli.ids import find
from warren.client import Sandbox
from warren.models import Connection
from warren_console.output import GAP
from warren_console.text import clean, cut, size, span, width

REFUSED = "refused"
# The widths of columns that cannot wait for what will be in them. The last one has what is left.
WIDTHS = {"TIME": 8, "VERDICT": 7, "VIA": 7, ">UP": 6, ">DOWN": 6, ">TOOK": 6, "TARGET": 30, "ADDRESS": 15}
LAST = "RULE OR WHY"
TITLES = (*WIDTHS, LAST)
NARROW_TITLES = ("TIME", "VERDICT", ">UP", ">DOWN", "TARGET", LAST)
NARROW = 100  # columns; with fewer there is no room for all titles
DAY = "%Y-%m-%d"


def egress(context: Context) -> int:
    """With `--follow` until the sandbox has ended."""
    asked, out = context.asked, context.out
    sandbox = find(context.warren, asked.sandbox)
    verdict = REFUSED if asked.refused else None
    found = list(sandbox.egress(asked.after, follow=False, verdict=verdict))
    if out.as_json and not asked.follow:
        out.json({"rows": [asdict(row) for row in found], "open": [asdict(row) for row in _open(context, sandbox)]})
        return errors.DONE
    if not asked.follow:
        _table(context, [*found, *_open(context, sandbox)])
        return errors.DONE
    _print_head(context)
    _print(context, found if out.as_json else [*found, *_open(context, sandbox)])
    _print(context, sandbox.egress(found[-1].seq if found else asked.after, verdict=verdict))
    return errors.DONE


def _open(context: Context, sandbox: Sandbox) -> list[Connection]:
    return [] if context.asked.refused else sandbox.open_connections()


def _table(context: Context, found: list[Connection]) -> None:
    out, titles = context.out, _titles(context)
    lines = out.table_lines(titles, [_cells(row, titles, out.now_ms) for row in found])
    told = [out.loud(line) if row.verdict == REFUSED else line for row, line in zip(found, lines[1:], strict=True)]
    out.raw("\n".join([lines[0], *told]) + "\n")


def _print_head(context: Context) -> None:
    if not context.out.as_json:
        titles = _titles(context)
        context.out.line(_line([title.removeprefix(">") for title in titles], titles, context.out.columns))


def _print(context: Context, found: Iterable[Connection]) -> None:
    """Each as it comes: the columns cannot know what follows."""
    out, titles = context.out, _titles(context)
    for row in found:
        if out.as_json:
            out.json_line(asdict(row))
            continue
        line = _line(_cells(row, titles, out.now_ms), titles, out.columns)
        out.raw((out.loud(line) if row.verdict == REFUSED else line) + "\n")


def _line(cells: Iterable[str], titles: Iterable[str], columns: int) -> str:
    padded = []
    for cell, title in zip(map(clean, cells), titles, strict=True):
        space = " " * (WIDTHS.get(title, 0) - width(cell))
        padded.append(space + cell if title.startswith(">") else cell + space)
    return cut(GAP.join(padded).rstrip(), columns)


def _titles(context: Context) -> tuple[str, ...]:
    return NARROW_TITLES if context.out.columns < NARROW else TITLES


def _cells(row: Connection, titles: Iterable[str], now_ms: int) -> list[str]:
    cells = {
        "TIME": _time(row.at_ms, now_ms),
        "VERDICT": row.verdict,
        "VIA": row.via,
        ">UP": "-" if row.verdict != "allowed" else size(row.up),
        ">DOWN": "-" if row.verdict != "allowed" else size(row.down),
        ">TOOK": "-" if row.duration_ms is None or row.verdict == REFUSED else _took(row.duration_ms),
        "TARGET": target(asdict(row)),
        "ADDRESS": (row.address or "-") if row.name else "",
        LAST: _cause(row),
    }
    return [cells[title] for title in titles]


def target(told: Mapping[str, Any]) -> str:
    """What was meant: `example.com:443`, `192.0.2.1:22`, `example.com`."""
    where = str(told.get("name") or told.get("address") or "-")
    return f"{where}:{told['port']}" if told.get("port") else where


def _cause(row: Connection) -> str:
    """The rule that allowed it, and what ended it before its time; or why it was refused."""
    why = (row.why or "").replace("_", " ")
    if row.verdict == REFUSED:
        return why + (f" ×{row.times}" if row.times > 1 else "")
    return (row.rule or "-") + (f" ({why})" if why else "")


def _time(at_ms: int, now_ms: int) -> str:
    """The time of the day, and the day if it is another one."""
    at, now = time.localtime(at_ms / 1000), time.localtime(now_ms / 1000)
    is_today = time.strftime(DAY, at) == time.strftime(DAY, now)
    return time.strftime("%H:%M:%S" if is_today else f"{DAY} %H:%M:%S", at)


def _took(duration_ms: int) -> str:
    if duration_ms < 1000:
        return f"{duration_ms}ms"
    return f"{duration_ms / 1000:.1f}s" if duration_ms < 60_000 else span(duration_ms / 1000)
