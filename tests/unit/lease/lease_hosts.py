"""Hosts of a cluster in one process, for tests: leases in a real folder, processes as machines, real wardens."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from lease_made import host

from poold.lease.guard import Guard, Targets
from poold.lease.keeper import Keeper
from poold.lease.notes import Notes
from poold.lease.starting import PREFIX, Ground, Held, acquire
from poold.lease.terms import Begin
from poold.lease.written import Lease
from poold.store import Blob, Entry, Store
from poold.store.errors import Unreachable
from poold.store.folder import FolderStore

HOLD_MS = 2000
LIMIT_S = 60.0
MACHINE = "import time; time.sleep(600)"


class Troubled:
    """A store in which things go wrong when a test says so. What it does is done by the real one."""

    def __init__(self, store: FolderStore) -> None:
        self._store = store
        self.is_away = False
        self.loses_replies = False

    async def get(self, key: str) -> Blob:
        self._must_be_there()
        return await self._store.get(key)

    async def create(self, key: str, data: bytes) -> Entry:
        self._must_be_there()
        return self._lost(await self._store.create(key, data))

    async def replace(self, key: str, data: bytes, tag: str) -> Entry:
        self._must_be_there()
        return self._lost(await self._store.replace(key, data, tag))

    def list(self, prefix: str) -> AsyncIterator[Entry]:
        self._must_be_there()
        return self._store.list(prefix)

    def _must_be_there(self) -> None:
        if self.is_away:
            raise Unreachable("the store is away")

    def _lost(self, entry: Entry) -> Entry:
        if self.loses_replies:
            raise Unreachable("its reply was lost")
        return entry


@dataclass
class TestHost:
    """One host: its folders, and the lease that it has or not."""

    __test__ = False
    name: str
    folder: Path
    store: Store
    hold_ms: int = HOLD_MS

    @property
    def guard(self) -> Guard:
        return Guard(self.folder / "run")

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.db"

    def ground(self) -> Ground:
        self.folder.mkdir(exist_ok=True)
        return Ground(
            store=self.store,
            guard=self.guard,
            notes=Notes(self.folder),
            targets=Targets(marks=(("--mark", f"{self.folder}/"),)),
            record=host(self.name),
            hold_ms=self.hold_ms,
            ledger=self.ledger,
        )

    async def begin(self) -> tuple[Begin, Keeper]:
        ground = self.ground()
        begin, held = await acquire(ground)
        return begin, Keeper(ground, held)

    async def lease(self) -> Lease:
        return Lease.decode((await self.store.get(f"{PREFIX}{self.name}")).data, self.name)

    def machine(self) -> "subprocess.Popen[bytes]":
        """A process that is found as one of this host's machines."""
        argv = [sys.executable, "-c", MACHINE, "--mark", f"{self.folder}/vm-1"]
        return subprocess.Popen(argv, start_new_session=True)

    def warden(self) -> int | None:
        from poold.lease.wardens import _found

        found = _found(self.guard)
        return None if found is None else found[0]

    def die(self) -> None:
        """Its poold, which is this process, is to be no more: what its warden does at the end it does without us."""
        found = self.guard.read()
        assert found is not None
        with self.guard.opened() as guard:
            guard.write(replace(found, pid=0))

    def end(self) -> None:
        """Leave nothing behind."""
        pid = self.warden()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def reborn(host: TestHost, **changes: object) -> TestHost:
    return replace(host, **changes)  # type: ignore[arg-type]


async def until(is_so: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Wait for a state, with a limit."""
    give_up = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < give_up, "this never came to be"
        await asyncio.sleep(0.02)


@contextlib.contextmanager
def hosts(folder: Path, store: Store, names: str) -> Iterator[list[TestHost]]:
    made = [TestHost(name, folder / name, store) for name in names]
    try:
        yield made
    finally:
        for each in made:
            each.end()


async def lost_in(keeper: Keeper, doing: Callable[[], Awaitable[object]]) -> None:
    """Hold the lease, do something to it, and wait for ever."""
    async with keeper.holding():
        await doing()
        await asyncio.Event().wait()


def is_dead(process: "subprocess.Popen[bytes]") -> bool:
    return process.poll() is not None


__all__ = ["HOLD_MS", "Held", "TestHost", "Troubled", "hosts", "is_dead", "lost_in", "reborn", "until"]
