"""The registry: a folder, or a place in S3, that hosts and gateways share. Each host writes its own record there, and
nobody else's. In both it is plain JSON, `hosts/NAME.json`.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from contract.errors import WarrenError
from contract.hosts import Host
from poold.lifetimes import beside
from poold.places import S3Config
from poold.store import Store

log = logging.getLogger("poold.registry")

EVERY_S = 1.0
S3_EVERY_S = 3.0  # each is a request that is paid for; gateways ask hosts themselves every second
LOOK_S = 0.1  # how soon gateways may learn that the host takes nothing new, or does again
WRITE_S = 5.0  # for one record in S3; the next beat comes
FAREWELL_S = 2.0  # for the last record; the folder may be on a network that is gone


class Place(Protocol):
    """Where records are written. Raises `OSError` or `WarrenError`."""

    @property
    def every_s(self) -> float: ...

    async def write(self, name: str, data: bytes) -> None:
        """From now on this is the record `name`. Who reads it reads all of it."""
        ...


@dataclass(frozen=True)
class InFolder:
    folder: Path

    @property
    def every_s(self) -> float:
        return EVERY_S

    async def write(self, name: str, data: bytes) -> None:
        await asyncio.to_thread(_write, self.folder / name, data)


@dataclass(frozen=True)
class InStore:
    store: Store

    @property
    def every_s(self) -> float:
        return S3_EVERY_S

    async def write(self, name: str, data: bytes) -> None:
        async with asyncio.timeout(WRITE_S):
            await self.store.put(name, data)


@contextlib.asynccontextmanager
async def open_place(where: Path | S3Config) -> AsyncIterator[Place]:
    if isinstance(where, Path):
        yield InFolder(where)
    else:
        from poold.store.s3 import open_s3

        async with open_s3(where) as store:
            yield InStore(store)


class Registry:
    """This host's record in the registry. What goes wrong is logged once, and tried again with the next beat."""

    def __init__(self, place: Place, record: Callable[[], Awaitable[Host]], is_ready: Callable[[], bool]) -> None:
        self._place = place
        self._record = record
        self._is_ready = is_ready
        self._was_ready = False
        self._is_failing = False

    @contextlib.asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Keep the record up to date during the block. After it, the record says that the host takes nothing new."""
        await self._beat()
        try:
            async with beside(self._forever()):
                yield
        finally:
            await self._take_leave()

    async def _take_leave(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self._beat(is_leaving=True)

    async def _forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._place.every_s
            # Who drains this host and who watches its memory know nothing of the registry: we look.
            while loop.time() < due and self._is_ready() is self._was_ready:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
            await self._beat()

    async def _beat(self, *, is_leaving: bool = False) -> None:
        host = await self._record()
        self._was_ready = host.ready
        if is_leaving:
            host = replace(host, ready=False)
        try:
            await self._place.write(f"hosts/{host.name}.json", host.encode())
        except (OSError, WarrenError) as error:
            if not self._is_failing:
                why = str(error) or f"no answer within {WRITE_S:g} s"
                log.error("this host's record cannot be written", extra={"host": host.name, "why": why})
            self._is_failing = True
        else:
            if self._is_failing:
                log.info("this host's record is written again")
            self._is_failing = False


def _write(path: Path, data: bytes) -> None:
    """Beside and renamed: who reads it reads all of it. It need not survive the power: the next beat comes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(data)
    beside.replace(path)
