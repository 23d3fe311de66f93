"""A lost host's work is carried on here: its ledger is made from the replica in the store and taken into this one.

Each step may be done again, by this host or by whoever takes this one over: what is here already is passed over. Those
that are not over come first, and go on while the rest, which only has to be found again, is still being taken in.
"""

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from contract.errors import CapacityError, WarrenError
from poold.config import Config
from poold.errors import Fenced
from poold.lease.members import Lost
from poold.ledger import Ledger, audit, care, inheriting
from poold.ledger.connect import open_reader
from poold.ledger.driver import sqlite3
from poold.ledger.inheriting import Former
from poold.lifetimes import finish
from poold.replica import replica_of
from poold.replica.accepted import accepted
from poold.replica.errors import NothingToRestore
from poold.replica.restoring import restore

log = logging.getLogger("poold.takeover")

AGAIN_S = 600.0  # between two tries to take in what made no sense: a person, or a later version, may have mended it
MAX_WHY = 200

Restore = Callable[[Lost, Path], Awaitable[int | None]]
GoOn = Callable[[str, str], Awaitable[None]]


@dataclass(frozen=True)
class Heir:
    """What a takeover needs of this host."""

    ledger: Ledger
    folder: Path  # for ledgers of lost hosts, while they are taken in
    restore: Restore  # makes that ledger there; of which epoch it is, None if there is nothing to make it from
    go_on: GoOn  # ("task" or "sandbox", id): it is in the ledger now, and may be worked on
    now_ms: Callable[[], int]
    forget: Callable[[str], None] = lambda _: None  # what was decided about this lost host's ledger. Blocks


class Carrying:
    """Takeovers of a daemon that is still being put together: none before it serves."""

    def __init__(self) -> None:
        self._heir: Heir | None = None
        self._turn = asyncio.Lock()
        self.missing: dict[str, int] = {}  # by host: how many rows of its ledger could not be taken in

    def begin(self, heir: Heir) -> None:
        self._heir = heir

    async def take_over(self, lost: Lost) -> None:
        if self._heir is None:
            raise RuntimeError("a host that does not serve yet takes nobody over")
        await self._carry_on(self._heir, lost)
        await asyncio.to_thread(self._heir.forget, lost.host)

    async def _carry_on(self, heir: Heir, lost: Lost) -> None:
        async with self._turn:
            told = await carry_on(heir, lost)
            self.missing.pop(lost.host, None)
            if count := told.get("missing"):
                self.missing[lost.host] = count

    async def finish_others(self) -> None:
        """Now and then, until it is cancelled: what was not wholly taken in, here or by a host that was taken over.

        What an operator has decided is about another line of that host, and stays.
        """
        while self._heir is not None:
            for host, epoch in await self._heir.ledger.read(inheriting.unfinished):
                try:
                    await self._carry_on(self._heir, Lost(host, epoch, epoch))
                except Exception as error:  # it costs this host nothing
                    log.warning("a takeover is not whole yet", extra={"host": host, "why": str(error)})
            await asyncio.sleep(AGAIN_S)


async def newest(config: Config, lost: Lost, to: Path) -> int | None:
    """Let `to` be the newest ledger of a line of epochs. Of which it is, or None if there is no replica of any.

    Raises `ReplicaDamaged` if the newest that was ever written cannot be had: what an older one has is not all that was
    acknowledged. Only an operator may decide that it will do (`poold.replica.accepted`).
    """
    if config.store is None:
        return None
    last = lost.last
    decided = await asyncio.to_thread(accepted, config.state_dir, lost.host)
    if decided is not None and (decided == 0 or lost.root <= decided < lost.last):
        log.warning("an operator accepts an older ledger", extra={"host": lost.host, "epoch": decided})
        last = decided
    for epoch in range(last, lost.root - 1, -1):
        with contextlib.suppress(NothingToRestore):
            target = replica_of(config.store, lost.host, epoch)
            await restore(target, to, environ=config.environ, check=care.check_copy)
            return epoch
    return None


async def carry_on(heir: Heir, lost: Lost) -> dict[str, int]:
    """Take everything in, and have it go on. What it came to. May be called again at any point, and after it."""
    async with _folder(heir.folder / lost.host) as folder:
        path, began = folder / "ledger.db", time.monotonic()
        epoch = await heir.restore(lost, path)
        told = {"host": lost.host, "epoch": epoch, "took_s": round(time.monotonic() - began, 1)}
        log.info("a lost host's ledger was made from its replica", extra=told)
        if epoch is None:
            log.warning("a lost host has no replica: it never acknowledged anything", extra={"host": lost.host})
            return {"sandboxes": 0, "tasks": 0}
        old = await finish(asyncio.to_thread(open_reader, path), undo=lambda db: db.close())
        try:
            former = Former(lost.host, epoch, await asyncio.to_thread(audit.head, old))
            return await _take_in(heir, former, old)
        finally:
            old.close()


async def _take_in(heir: Heir, lost: Former, old: sqlite3.Connection) -> dict[str, int]:
    """The other ledger is read in the writer's thread: what it has of a task and what is written of it are one step.

    A row that makes no sense costs no other: what could not be taken in is told and tried again (`finish_others`), and
    the replica stays. What is here and cannot go on now, as without the store, is raised at the end: all is done again.
    """
    write, began, first_s = heir.ledger.write, time.monotonic(), None
    if await write(partial(inheriting.begin, lost=lost, now_ms=heir.now_ms())):
        await write(partial(inheriting.take_repeats, old=old, now_ms=heir.now_ms()))
        taking = _Taking(heir, lost, old)
        for kind, ids in await asyncio.to_thread(lambda: list(inheriting.batches(old))):
            await taking.take(kind, ids)
            first_s = round(time.monotonic() - began, 1) if first_s is None else first_s
        await write(partial(inheriting.take_unfinished, old=old))
        if left := await write(partial(inheriting.take_leftovers, old=old)):
            log.warning(
                "leftovers that are not a lost host's own stay", extra={"host": lost.host, "prefixes": left[:20]}
            )
        if taking.failed is not None:
            raise taking.failed
        if taking.missing:
            told = await write(partial(inheriting.lack, lost=lost, missing=taking.missing, now_ms=heir.now_ms()))
            log.error("a lost host was taken over, but not all of it", extra={"host": lost.host, **told})
            return told
    told = await write(partial(inheriting.finish, lost=lost, now_ms=heir.now_ms()))
    took = {"first_s": first_s, "took_s": round(time.monotonic() - began, 1)}  # until the first of it could go on
    log.warning("a lost host was taken over", extra={"host": lost.host, "epoch": lost.epoch, **told, **took})
    return told


class _Taking:
    """One lost ledger on its way in: what cannot come, and why what came does not go on."""

    def __init__(self, heir: Heir, lost: Former, old: sqlite3.Connection) -> None:
        self._heir, self._lost, self._old = heir, lost, old
        self.missing: dict[str, str] = {}
        self.failed: WarrenError | OSError | None = None

    async def take(self, kind: str, ids: Sequence[str]) -> None:
        """Together if that is possible, else one by one."""
        take = partial(inheriting.take, old=self._old, lost=self._lost, kind=kind, now_ms=self._heir.now_ms())
        try:
            await self._heir.ledger.write(partial(take, ids=ids))
        except (CapacityError, asyncio.CancelledError):  # fenced, or a full disk: no row's fault
            raise
        except Exception as error:
            if len(ids) > 1:
                for one in ids:
                    await self.take(kind, [one])
                return
            why = f"{type(error).__name__}: {error}"
            log.error("a row of a lost host makes no sense", extra={"host": self._lost.host, kind: ids[0], "why": why})
            self.missing[str(ids[0])] = why[:MAX_WHY]
            return
        for one in ids:
            await self._go_on(kind, one)

    async def _go_on(self, kind: str, one: str) -> None:
        try:
            await self._heir.go_on(kind, one)
        except Fenced:
            raise
        except (WarrenError, OSError) as error:
            log.warning("what came from a lost host does not go on yet", extra={kind: one, "why": str(error)})
            self.failed = error


@contextlib.asynccontextmanager
async def _folder(path: Path) -> AsyncIterator[Path]:
    """An empty folder during the block. What a takeover that was cut short left there is of no use."""

    def make() -> None:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700, parents=True)

    try:
        await finish(asyncio.to_thread(make))
        yield path
    finally:
        await finish(asyncio.to_thread(shutil.rmtree, path, ignore_errors=True))
