"""What a gateway does all the time: read the registry, probe hosts, look at its own keys and certificates."""

import asyncio
import logging
from collections.abc import Callable, Mapping

import orjson

from contract.errors import WarrenError
from contract.hosts import Host
from contract.tickets import Access
from gateway.auth import Auth
from gateway.errors import HostBroken, HostUnreachable
from gateway.hosts import Hosts
from gateway.registry import Records, Registry

log = logging.getLogger("gateway.watching")

EVERY_S = 1.0
PROBE_S = 2.0


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
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._complaints: dict[str, str] = {}  # by host: what was last wrong with its answers

    async def look(self) -> None:
        """Once, all of it: after this a gateway may serve."""
        await self._read()
        await self._probe_all()
        if self._probing:
            await asyncio.wait(self._probing.values())

    async def keep(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                await self._read()
                await self._probe_all()
        finally:
            for task in self._probing.values():
                task.cancel()
            if self._probing:
                await asyncio.wait(self._probing.values())

    async def _read(self) -> None:
        """A registry that cannot be read leaves everything as it was: better than to serve nobody."""
        try:
            records = await asyncio.to_thread(self._in_thread)
        except OSError as error:
            if self.is_read:
                log.error("the registry cannot be read", extra={"why": str(error)})
            self.is_read = False
            return
        self.is_read = True
        self._auth.know(records.keys)
        if self._listed:
            self._hosts.know(self._listed, beats=False)
        else:
            self._hosts.know(records.hosts)

    def _in_thread(self) -> Records:
        for refresh in self._refreshes:
            refresh()
        return self._registry.read()

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
