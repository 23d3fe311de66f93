"""What a gateway does all the time: read the registry, probe hosts, look at its own keys and certificates."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping

import orjson

from contract.errors import WarrenError
from contract.hosts import Host
from contract.tickets import Access
from gateway.auth import Auth
from gateway.errors import HostBroken, HostUnreachable, RegistryUnreachable
from gateway.hosts import Hosts
from gateway.registry import Records, Registry

log = logging.getLogger("gateway.watching")

EVERY_S = 1.0
JITTER = 0.2  # of that, more or less: many gateways that were started together do not come together
PROBE_S = 2.0
READ_S = 3.0  # a registry that takes longer hangs: keys are not as fresh as we promise


class Watch:
    """Keeps hosts and keys as fresh as a second."""

    def __init__(
        self,
        registry: Registry,
        auth: Auth,
        hosts: Hosts,
        *,
        listed: Mapping[str, str],
        refreshes: tuple[Callable[[], None], ...] = (),
    ) -> None:
        self._registry = registry
        self._auth = auth
        self._hosts = hosts
        self._listed = {name: Host(name, address) for name, address in listed.items()}
        self._refreshes = refreshes
        self.is_read = False  # the registry could be read the last time
        self._reading: asyncio.Task[Records] | None = None  # the read that is under way
        self._changes = 0  # of keys here, when that read began
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._complaints: dict[str, str] = {}  # by host: what was last wrong with its answers

    async def look(self) -> None:
        """Once, all of it: after this a gateway may serve."""
        await self._read()
        await self._probe_all()
        if self._probing:
            await asyncio.wait(self._probing.values())

    async def keep(self) -> None:
        """Until cancelled. A registry that hangs keeps no host from being probed."""
        try:
            async with asyncio.TaskGroup() as group:
                for what in (self._read, self._probe_all):
                    group.create_task(_always(what))
        finally:
            if self._reading is not None:
                self._reading.cancel()
            for task in self._probing.values():
                task.cancel()
            if self._probing:
                await asyncio.wait(self._probing.values())

    async def _read(self) -> None:
        """A registry that cannot be read leaves everything as it was: better than to serve nobody.

        One that hangs is not asked again before it has answered: a thread that waits for a folder cannot be ended.
        """
        if self._reading is None:
            self._changes = self._auth.changes
            self._reading = asyncio.create_task(self._everything())
        reading = self._reading
        await asyncio.wait([reading], timeout=READ_S)
        if not reading.done():
            self._unread(f"it did not answer within {READ_S:g} s")
            return
        self._reading = None
        try:
            records = reading.result()
        except (RegistryUnreachable, OSError) as error:
            self._unread(str(error))
        else:
            self._know(records)

    def _unread(self, why: str) -> None:
        if self.is_read:
            log.error("the registry cannot be read", extra={"why": why})
        self.is_read = False

    def _know(self, records: Records) -> None:
        if records.missed:
            self._unread(records.missed)
        elif not self.is_read:
            log.info("the registry is read", extra={"hosts": len(records.hosts), "keys": len(records.keys)})
            self.is_read = True
        if self._changes == self._auth.changes:  # else a key that was just revoked here might be good again
            self._auth.know(records.keys)
        if self._listed:
            self._hosts.know(self._listed, beats=False)
        else:
            self._hosts.know(records.hosts)

    async def _everything(self) -> Records:
        await asyncio.to_thread(self._refresh)
        return await self._registry.read()

    def _refresh(self) -> None:
        for refresh in self._refreshes:
            refresh()

    async def _probe_all(self) -> None:
        """One probe of each host is under way at a time: a slow host delays no other."""
        for name in self._hosts.names():
            if name not in self._probing:
                task = asyncio.create_task(self._probe(name))
                self._probing[name] = task
                task.add_done_callback(lambda _, name=name: self._probing.pop(name, None))  # type: ignore[misc]

    async def _probe(self, name: str) -> None:
        try:
            answer = await self._hosts.ask(name, "GET", "/v1/host", Access.HOST, limit_s=PROBE_S, even_dead=True)
            record = Host.decode(orjson.dumps(answer.or_raise()))
            if record.name != name:
                raise HostBroken(f"the host that is known as {name} calls itself {record.name}")
        except HostUnreachable:
            return  # counted where it was found
        except WarrenError as error:
            self._hosts.failed(name)
            self._complain(name, f"{error.code}: {error.message}")
        else:
            self._complaints.pop(name, None)
            self._hosts.heard(name, record)

    def _complain(self, name: str, why: str) -> None:
        if self._complaints.get(name) != why:
            self._complaints[name] = why
            log.warning("a host does not tell of itself", extra={"host": name, "why": why})


async def _always(what: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(EVERY_S * random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311 — no secret
        await what()
