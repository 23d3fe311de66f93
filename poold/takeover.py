"""A lost host's work is carried on here: its ledger is made from the replica in the store and taken into this one.

Each step may be done again, by this host or by whoever takes this one over: what is here already is passed over. Those
that are not over come first, and go on while the rest, which only has to be found again, is still being taken in.
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from poold.ledger import Ledger, audit, inheriting
from poold.ledger.connect import open_reader
from poold.ledger.driver import sqlite3
from poold.ledger.inheriting import Lost
from poold.lifetimes import finish

log = logging.getLogger("poold.takeover")

Restore = Callable[[str, int, Path], Awaitable[bool]]
GoOn = Callable[[str, str], Awaitable[None]]


@dataclass(frozen=True)
class Heir:
    """What a takeover needs of this host."""

    ledger: Ledger
    folder: Path  # for ledgers of lost hosts, while they are taken in
    restore: Restore  # (host, epoch, path): makes that ledger there; False if there is nothing to make it from
    go_on: GoOn  # ("task" or "sandbox", id): it is in the ledger now, and may be worked on
    now_ms: Callable[[], int]


@dataclass(frozen=True)
class Estate:
    """What a host left behind. The ledger of a line of epochs is one; the newest replica of it counts."""

    host: str
    epochs: Sequence[int]  # the newest first


async def carry_on(heir: Heir, estate: Estate) -> dict[str, int]:
    """Take everything in, and have it go on. What it came to. May be called again at any point, and after it."""
    async with _restored(heir, estate) as (epoch, path):
        if path is None:
            log.warning("a lost host has no replica: it never acknowledged anything", extra={"host": estate.host})
            return {"sandboxes": 0, "tasks": 0}
        old = await finish(asyncio.to_thread(open_reader, path), undo=lambda db: db.close())
        try:
            return await _take_in(heir, Lost(estate.host, epoch, await asyncio.to_thread(audit.head, old)), old)
        finally:
            old.close()


async def _take_in(heir: Heir, lost: Lost, old: sqlite3.Connection) -> dict[str, int]:
    """The other ledger is read in the writer's thread: what it has of a task and what is written of it are one step."""
    write = heir.ledger.write
    if await write(partial(inheriting.begin, lost=lost, now_ms=heir.now_ms())):
        await write(partial(inheriting.take_repeats, old=old, now_ms=heir.now_ms()))
        for kind, ids in await asyncio.to_thread(lambda: list(inheriting.batches(old))):
            take = partial(inheriting.take, old=old, lost=lost, kind=kind, ids=ids, now_ms=heir.now_ms())
            await write(take)
            for one in ids:
                await heir.go_on(kind, one)
    told = await write(partial(inheriting.finish, lost=lost, now_ms=heir.now_ms()))
    log.warning("a lost host was taken over", extra={"host": lost.host, "epoch": lost.epoch, **told})
    return told


@contextlib.asynccontextmanager
async def _restored(heir: Heir, estate: Estate) -> AsyncIterator[tuple[int, Path | None]]:
    """The lost host's newest ledger, and of which epoch it is, during the block."""
    folder = heir.folder / estate.host
    try:
        await finish(asyncio.to_thread(_make_empty, folder))
        for epoch in estate.epochs:
            path = folder / f"{epoch}.db"
            if await heir.restore(estate.host, epoch, path):
                yield epoch, path
                return
        yield 0, None
    finally:
        await finish(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))


def _make_empty(folder: Path) -> None:
    """What a takeover that was cut short left there is of no use."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700, parents=True)
