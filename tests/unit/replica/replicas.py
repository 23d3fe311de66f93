"""What the tests of replicas share: a ledger with Litestream beside it, and what is in a replica."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from poold.config import S3Config
from poold.devstore import BUCKET
from poold.ledger import Ledger, care, events
from poold.ledger.connect import open_reader
from poold.ledger.covering import Replication
from poold.ledger.driver import sqlite3
from poold.replica import Litestream, Replica, Target, replica_of
from poold.replica.litestream import Places
from poold.replica.restoring import restore

LIMIT_S = 60.0


@dataclass
class Place:
    """One host's folders and where its replica goes."""

    folder: Path
    store: Path | S3Config
    environ: Mapping[str, str] = field(default_factory=dict)
    epoch: int = 1

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.db"

    @property
    def target(self) -> Target:
        return replica_of(self.store, "host-1", self.epoch)

    def litestream(self) -> Litestream:
        self.folder.mkdir(exist_ok=True)
        places = Places(self.ledger, self.folder / "litestream", self.folder, self.epoch)
        return Litestream(places, self.target, {"PATH": os.environ["PATH"], **self.environ})

    @contextlib.asynccontextmanager
    async def replica(self) -> AsyncIterator[Replica]:
        async with Replica(self.litestream(), lambda *_: None, lambda: 0).running() as replica:
            yield replica

    @contextlib.asynccontextmanager
    async def opened(self, *, holds: bool = True) -> AsyncIterator[tuple[Ledger, Replica]]:
        async with self.replica() as replica:
            way = Replication(replica.cover, holds, lambda: replica.why)
            async with Ledger.open(self.ledger, replication=way) as ledger:
                yield ledger, replica

    async def restored(self, name: str = "restored.db") -> Path:
        """What a successor gets."""
        to = self.folder / name
        await restore(self.target, to, environ=dict(self.environ), check=care.check_copy)
        return to

    async def numbers(self) -> set[int]:
        """The rows of `put` that a successor gets."""
        path = await self.restored(f"restored-{time.monotonic_ns()}.db")
        try:
            return numbers(path)
        finally:
            path.unlink()


def in_s3(folder: Path, server_environ: Mapping[str, str], prefix: str, **more: int) -> Place:
    return Place(folder, S3Config(BUCKET, prefix), server_environ, **more)


def put(db: sqlite3.Connection, number: int) -> int:
    return events.append(db, "all", "output", {"n": number}, at_ms=number)


def numbers(path: Path) -> set[int]:
    with contextlib.closing(open_reader(path)) as db:
        return {row[0] for row in db.execute("SELECT data ->> 'n' FROM events WHERE stream = 'all'")}


async def until(is_so: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    async with asyncio.timeout(limit_s):
        while not is_so():
            await asyncio.sleep(0.01)
