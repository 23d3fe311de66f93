"""`warren egress`: what a sandbox tried to reach, and what came of it.

A connection is told when it is over, or was refused. People see those that are open, too.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import chain
from typing import Any

from warren.cli import errors
from warren.cli.context import Context
from warren.cli.ids import find
from warren.models import Connection
from warren_console.output import GAP, Output
from warren_console.text import clean, cut, size, span, width

REFUSED = "refused"
LAST = "RULE OR WHY"
# Columns, and their least widths where they cannot wait for what will be in them.
WIDTHS = {"TIME": 8, "VERDICT": 7, "VIA": 7, ">UP": 6, ">DOWN": 6, ">TOOK": 6, "TARGET": 24, LAST: 18, "ADDRESS": 15}
NARROW_TITLES = ("TIME", "VERDICT", ">UP", ">DOWN", "TARGET", LAST)
NARROW = 100  # columns; with fewer there is no room for all
DAY = "%m-%d"


def egress(context: Context) -> int:
    """With `--follow` until the sandbox has ended."""
    asked, out = context.asked, context.out
    sandbox = find(context.warren, asked.sandbox)
    verdict = REFUSED if asked.refused else None
    found = list(sandbox.egress(asked.after, follow=False, verdict=verdict))
    now_open = [] if asked.refused or (asked.follow and out.as_json) else sandbox.open_connections()
    coming = sandbox.egress(found[-1].seq if found else asked.after, verdict=verdict) if asked.follow else iter(())
    if not out.as_json:
        _show(out, [*found, *now_open], coming, is_growing=asked.follow)
    elif asked.follow:
        for row in chain(found, coming):
            out.json_line(asdict(row))
    else:
        out.json({"rows": [asdict(row) for row in found], "open": [asdict(row) for row in now_open]})
    return errors.DONE


def _show(out: Output, found: list[Connection], coming: Iterable[Connection], *, is_growing: bool) -> None:
    """A table; one that grows has columns that do not know what will come."""
    titles = NARROW_TITLES if out.columns < NARROW else tuple(WIDTHS)
    head = [title.removeprefix(">") for title in titles]
    rows = [_cells(row, titles, out.now_ms) for row in found]
    least = [WIDTHS[title] if is_growing else width(name) for title, name in zip(titles, head, strict=True)]
    widest = [max(map(width, column)) for column in zip(*rows, strict=True)] or least
    widths = _fitted(dict(zip(titles, map(max, least, widest), strict=True)), out.columns)
    out.raw(out.bold(_line(head, widths, out.columns)) + "\n")
    for row in chain(found, coming):
        line = _line(_cells(row, titles, out.now_ms), widths, out.columns)
        out.raw((out.loud(line) if row.verdict == REFUSED else line) + "\n")


def _fitted(widths: dict[str, int], columns: int) -> dict[str, int]:
    """The target gives way until the rule can be seen; after that the lines are cut at their end."""
    missing = max(0, sum(widths.values()) + len(GAP) * (len(widths) - 1) - columns)
    rule = min(widths[LAST], WIDTHS[LAST])
    over = max(0, missing - (widths[LAST] - rule))
    return {**widths, "TARGET": max(WIDTHS["TARGET"], widths["TARGET"] - over), LAST: max(rule, widths[LAST] - missing)}


def _line(cells: Iterable[str], widths: Mapping[str, int], columns: int) -> str:
    padded = []
    for cell, (title, most) in zip(cells, widths.items(), strict=True):
        # The end of a name says more than its beginning.
        text = cut(cell[::-1], most)[::-1] if title == "TARGET" else cut(cell, most) if title == LAST else cell
        space = " " * (most - width(text))
        padded.append(space + text if title.startswith(">") else text + space)
    return cut(GAP.join(padded).rstrip(), columns)


def _cells(row: Connection, titles: Iterable[str], now_ms: int) -> list[str]:
    is_over = row.verdict == "allowed"
    cells = {
        "TIME": _time(row.at_ms, now_ms),
        "VERDICT": row.verdict,
        "VIA": row.via,
        ">UP": size(row.up) if is_over else "-",
        ">DOWN": size(row.down) if is_over else "-",
        ">TOOK": _took(row.duration_ms) if is_over and row.duration_ms is not None else "-",
        "TARGET": target(asdict(row)),
        LAST: _cause(row),
        "ADDRESS": row.address or "-",
    }
    return [clean(cells[title]) for title in titles]


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
    is_today = (at.tm_year, at.tm_yday) == (now.tm_year, now.tm_yday)
    return time.strftime("%H:%M:%S" if is_today else f"{DAY} %H:%M", at)


def _took(duration_ms: int) -> str:
    if duration_ms < 1000:
        return f"{duration_ms}ms"
    return f"{duration_ms / 1000:.1f}s" if duration_ms < 60_000 else span(duration_ms / 1000)
