"""The registry: a folder that hosts and gateways share. Each host writes its own record there, and nobody else's."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from contract.hosts import Host
from poold.lifetimes import beside

log = logging.getLogger("poold.registry")

EVERY_S = 1.0
LOOK_S = 0.1  # how soon gateways may learn that the host takes nothing new, or does again
FAREWELL_S = 2.0  # for the last record; the folder may be on a network that is gone


class Registry:
    """This host's record in the registry. What goes wrong is logged once, and tried again with the next beat."""

    def __init__(self, folder: Path, record: Callable[[], Awaitable[Host]], is_ready: Callable[[], bool]) -> None:
        self._hosts = folder / "hosts"
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
            due = loop.time() + EVERY_S
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
            await asyncio.to_thread(_write, self._hosts / f"{host.name}.json", host.encode())
        except OSError as error:
            if not self._is_failing:
                log.error("this host's record cannot be written", extra={"path": str(self._hosts), "why": str(error)})
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
