"""`pooldctl top`: what every machine uses, again and again."""

import contextlib
import os
import select
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.sandboxes import next_step
from warren_console.text import cut, fitted, megabytes, relative

TITLES = ("SANDBOX", "IMAGE", "OWNER", ">CPU %", ">VCPUS", ">USED", ">MEMORY", ">PIDS", "STARTED", "NEXT")
# The alternate screen, without a cursor; and back again.
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, TO_END_OF_LINE, BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
Sample = dict[str, Any]


def top(context: Context) -> int:
    asked, out = context.asked, context.out
    if asked.once or out.as_json or not out.is_terminal:
        return _once(context)
    before = context.poold.get("/admin/top")
    with _screen(), _keys() as keyboard:
        now = before
        while True:
            out.raw(_page(context, before, now))
            if _quit_typed(keyboard, asked.interval):
                return errors.DONE
            before, now = now, context.poold.get("/admin/top")


def _once(context: Context) -> int:
    before = context.poold.get("/admin/top")
    time.sleep(context.asked.interval)
    now = context.poold.get("/admin/top")
    shares = cpu_percent(before, now)
    if context.out.as_json:
        rows = [{**row, "cpu_percent": shares[row["machine"]]} for row in now["machines"]]
        context.out.json({**now, "machines": rows})
    else:
        context.out.table(TITLES, _rows(before, now))
    return errors.DONE


def cpu_percent(before: Sample, now: Sample) -> dict[str, float | None]:
    """How busy each machine was between two samples: 100 is one processor. None if it was not there before."""
    seconds = (now["at_ms"] - before["at_ms"]) / 1000
    used = {row["machine"]: row["cpu_s"] for row in before["machines"]}
    return {
        row["machine"]: max(0.0, round((row["cpu_s"] - used[row["machine"]]) / seconds * 100, 1))
        if seconds > 0 and row["machine"] in used
        else None
        for row in now["machines"]
    }


def _rows(before: Sample, now: Sample) -> list[tuple[object, ...]]:
    """The busiest first."""
    shares = cpu_percent(before, now)
    machines = sorted(now["machines"], key=lambda row: (-(shares[row["machine"]] or 0), row["machine"]))
    return [_cells(row, shares[row["machine"]], now["at_ms"]) for row in machines]


def _cells(row: Sample, share: float | None, now_ms: int) -> tuple[object, ...]:
    return (
        row.get("sandbox") or f"(warm) {row['machine']}",
        row["image"],
        row.get("owner") or "-",
        "-" if share is None else f"{share:.1f}",
        row["vcpus"],
        megabytes(row.get("memory_used_mb")),
        megabytes(row["memory_mb"]),
        "-" if row.get("pids") is None else row["pids"],
        relative(row.get("started_ms"), now_ms),
        next_step(row.get("next"), now_ms),
    )


def _page(context: Context, before: Sample, now: Sample) -> str:
    """The whole screen. What stood there is written over rather than wiped, which would flicker."""
    size = shutil.get_terminal_size()  # the usual one for a terminal that does not know its own
    used = sum(row.get("memory_used_mb") or 0 for row in now["machines"])
    clock = time.strftime("%H:%M:%S", time.localtime(now["at_ms"] / 1000))
    head = f"{clock}  {len(now['machines'])} machines, {megabytes(used)} used  (q to quit)"
    table = context.out.table_lines(TITLES, _rows(before, now))
    lines = fitted([cut(head, size.columns), "", *table], size.lines)
    return HOME + "\r\n".join(line + TO_END_OF_LINE for line in lines) + BELOW


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    sys.stdout.write(ENTER)
    try:
        yield
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    """The keyboard, key by key and without an echo during the block; None if standard input is none."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):
        yield None
        return
    kept = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, kept)


def _quit_typed(keyboard: int | None, wait_s: float) -> bool:
    """Wait so long; whether q was typed meanwhile."""
    give_up = time.monotonic() + wait_s
    while (left := give_up - time.monotonic()) > 0:
        ready, _, _ = select.select([] if keyboard is None else [keyboard], [], [], left)
        if ready:
            typed = os.read(ready[0], 64)
            if not typed or b"q" in typed or b"Q" in typed:
                return True
    return False
