"""A process that writes to a ledger until it is killed: each acknowledged number goes to standard output, at once.

python -m tests.unit.ledger.doomed_writer PATH
"""

import asyncio
import os
import sys
from itertools import count
from pathlib import Path

import uvloop

from contract.states import Event
from poold.ledger import Ledger, events, sandboxes
from poold.ledger.driver import sqlite3
from tests.unit.ledger.rows import box

WRITERS = 8


def lifetime(db: sqlite3.Connection, number: int) -> None:
    """A whole short life of a sandbox, with one event of its guest."""
    sandboxes.add(db, box(number))
    for event in (Event.CLAIM, Event.READY, Event.STOP):
        sandboxes.move(db, box(number).id, event, now_ms=number)
    events.append(db, "all", "output", {"n": number}, at_ms=number, guest_seq=number + 1)


async def writing(ledger: Ledger, start: int) -> None:
    for number in count(start, WRITERS):
        await ledger.write(lambda db, number=number: lifetime(db, number))
        os.write(1, b"%d\n" % number)  # one write of a few bytes: whole or not at all


async def main() -> None:
    async with Ledger.open(Path(sys.argv[1])) as ledger:
        ids = await ledger.read(lambda db: db.execute("SELECT count(*) FROM sandboxes").fetchone()[0])
        start = (ids // WRITERS + 1) * 1000 * WRITERS
        await asyncio.gather(*(writing(ledger, start + n) for n in range(WRITERS)))


if __name__ == "__main__":
    uvloop.run(main())
