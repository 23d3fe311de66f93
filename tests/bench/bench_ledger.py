"""How fast the ledger is, beside bare SQLite doing the same. Prints `name=value` lines.

python -m tests.bench.bench_ledger [folder]

The folder says which disk is measured; without one it is the repository's `build`. The bare side writes the same rows
in the same groups: `ledger_vs_sqlite` is against one that asks SQLite for each row's number in its stream, as whoever
has no ledger must, and `ledger_vs_inserts` against one that is told the numbers and only inserts.
"""

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path

import orjson
import uvloop

from contract.models import Rules, Sandbox, Shape
from contract.states import Event, State
from poold.ledger import Ledger, events, sandboxes
from poold.ledger.connect import grow_log, open_writer
from poold.ledger.driver import sqlite3
from poold.ledger.migrate import migrate

ROOT = Path(__file__).resolve().parent.parent.parent
WRITERS = 64
ROUNDS = 60
WRITES = 15  # of each writer in a round: whole circles of moves
FLUSHES = 500
DATA = {"text": "x" * 100, "pid": 4711}


def stream_of(writer: int) -> str:
    return f"sb-{writer:016}"


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


async def appending(ledger: Ledger, writer: int, acks: list[float]) -> None:
    for number in range(WRITES):
        began = time.perf_counter()
        await ledger.write(partial(events.append, stream=stream_of(writer), kind="output", data=DATA, at_ms=number))
        acks.append(time.perf_counter() - began)


CIRCLE = (Event.PAUSE, Event.RESUME, Event.READY)


async def moving(ledger: Ledger, writer: int) -> None:
    for number, event in zip(range(WRITES), cycle(CIRCLE), strict=False):
        await ledger.write(partial(sandboxes.move, sandbox_id=stream_of(writer), event=event, now_ms=number))


async def all_writers(work: Callable[[int], object]) -> float:
    """Seconds for all writers at once."""
    began = time.perf_counter()
    await asyncio.gather(*(work(writer) for writer in range(WRITERS)))  # type: ignore[call-overload]
    return time.perf_counter() - began


@contextlib.contextmanager
def bare_sqlite(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection with our schema and our settings, and nothing of ours around it."""
    db = open_writer(path)
    try:
        migrate(db)
        grow_log(path)
        db.execute("PRAGMA synchronous = FULL")
        yield db
    finally:
        db.close()


def bare_s(db: sqlite3.Connection, groups: list[int], numbers: dict[str, int] | None = None) -> float:
    """Seconds for the same rows in the same groups, in a plain loop. `numbers`: the last of each stream, if known."""
    writers = cycle(range(WRITERS))
    began = time.perf_counter()
    for number, size in enumerate(groups):
        db.execute("BEGIN IMMEDIATE")
        for _ in range(size):
            stream = stream_of(next(writers))
            if numbers is None:
                (seq,) = db.execute(events.NEXT_SEQ, (stream,)).fetchone()
            else:
                seq = numbers[stream] = numbers.get(stream, 0) + 1
            db.execute(events.APPEND, (stream, seq, number, "output", orjson.dumps(DATA).decode(), None))
        db.execute("COMMIT")
    return time.perf_counter() - began


def flushes_s(path: Path) -> list[float]:
    """What the disk alone takes: a page written and flushed, in a file that has its size."""
    page, took = os.urandom(4096), []
    path.write_bytes(bytes(FLUSHES * len(page)))
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
        for number in range(FLUSHES):
            began = time.perf_counter()
            os.pwrite(handle, page, number * len(page))
            os.fdatasync(handle)
            took.append(time.perf_counter() - began)
    finally:
        os.close(handle)
    return took


def populate(db: sqlite3.Connection) -> None:
    for writer in range(WRITERS):
        new = Sandbox(stream_of(writer), State.PENDING, Shape("host", 1, 256, 1024), {}, 0, None, Rules(3600))
        sandboxes.add(db, new)
        sandboxes.move(db, new.id, Event.CLAIM, now_ms=0)
        sandboxes.move(db, new.id, Event.READY, now_ms=0)


async def measure(folder: Path) -> None:
    groups: list[int] = []
    acks: list[float] = []
    ours, bare, inserts, moves = [], [], [], []
    numbers: dict[str, int] = {}
    with bare_sqlite(folder / "bare.db") as db, bare_sqlite(folder / "inserts.db") as inserting:
        async with Ledger.open(folder / "events.db", observe=lambda _s, size: groups.append(size)) as ledger:
            for _ in range(ROUNDS):
                groups.clear()
                ours.append(await all_writers(lambda writer: appending(ledger, writer, acks)))
                bare.append(bare_s(db, groups))
                inserts.append(bare_s(inserting, groups, numbers))
    async with Ledger.open(folder / "moves.db") as ledger:
        await ledger.write(populate)
        for _ in range(ROUNDS):
            moves.append(await all_writers(lambda writer: moving(ledger, writer)))
    print(f"ledger_group_p50={statistics.median(groups):.0f}")
    per_round = WRITERS * WRITES
    print(f"ledger_events_per_s={per_round / statistics.median(ours):.0f}")
    print(f"sqlite_events_per_s={per_round / statistics.median(bare):.0f}")
    print(f"ledger_vs_sqlite={statistics.median(b / a for a, b in zip(ours, bare, strict=True)):.2f}")
    print(f"ledger_vs_inserts={statistics.median(b / a for a, b in zip(ours, inserts, strict=True)):.2f}")
    print(f"ledger_moves_per_s={per_round / statistics.median(moves):.0f}")
    print(f"ledger_ack_ms_p50={percentile(acks, 0.5) * 1e3:.2f}")
    print(f"ledger_ack_ms_p99={percentile(acks, 0.99) * 1e3:.2f}")
    flushed = flushes_s(folder / "flushed")
    print(f"fsync_ms_p50={percentile(flushed, 0.5) * 1e3:.2f}")
    print(f"fsync_ms_p99={percentile(flushed, 0.99) * 1e3:.2f}")


def main() -> None:
    parent = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build"
    parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        uvloop.run(measure(Path(folder)))


if __name__ == "__main__":
    main()
