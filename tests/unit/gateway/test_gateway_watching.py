"""The watch over registry and hosts: what it does when the registry hangs, and when keys change meanwhile."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import gateway.watching
from contract.keys import Key, key_id
from gateway.auth import Auth
from gateway.errors import HostUnreachable
from gateway.hosts import Hosts
from gateway.registry import Records
from gateway.registry.folder import Folder, FolderRegistry
from gateway.watching import Watch

KEY = Key(key_id("wrn_" + "a" * 40), "red")
SHORT_S = 0.01


class Hanging(Folder):
    """A registry whose reads, when told to, hang behind what they have read until they are let go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.registry = FolderRegistry(folder)
        self.registry._folder = self
        self.go_on = threading.Event()
        self.go_on.set()
        self.reads = 0

    def read(self) -> Records:
        self.reads += 1
        found = super().read()
        assert self.go_on.wait(10)
        return found


class Counted:
    """One host that nobody reaches, and how often it was probed."""

    probes = 0

    def know(self, *_: Any, **__: Any) -> None:
        pass

    def names(self) -> list[str]:
        return ["h"]

    async def ask(self, *_: Any, **__: Any) -> Any:
        self.probes += 1
        raise HostUnreachable("nobody is there")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.watching, "EVERY_S", SHORT_S)
    monkeypatch.setattr(gateway.watching, "READ_S", SHORT_S)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Hanging]:
    made = Hanging(tmp_path)
    made.add_key(KEY)
    yield made
    made.go_on.set()  # whatever happened: a thread that waits would keep the loop from closing


@pytest.fixture
def auth() -> Auth:
    return Auth(now_ms=lambda: 0, visitor_rate=0)


@contextlib.asynccontextmanager
async def kept(watch: Watch) -> AsyncIterator[None]:
    """The watch has looked once, and goes on during the block."""
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        await until_read(watch)
        task = group.create_task(watch.keep())
        yield
        task.cancel()


async def until_read(watch: Watch) -> None:
    async with asyncio.timeout(10):
        while not watch.is_read:
            await watch.look()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(SHORT_S)


async def test_while_the_registry_hangs_hosts_are_probed_and_it_is_read_once(registry: Hanging, auth: Auth) -> None:
    hosts = Counted()
    watch = Watch(registry.registry, auth, cast(Hosts, hosts), listed={})
    async with kept(watch):
        registry.go_on.clear()
        await until(lambda: not watch.is_read)
        probes, reads = hosts.probes, registry.reads
        await until(lambda: hosts.probes > probes + 10)
        assert registry.reads == reads
        assert not watch.is_read
        assert set(auth.keys) == {KEY.id}
        registry.go_on.set()
        await until(lambda: watch.is_read and registry.reads > reads)


async def test_a_registry_that_hangs_at_the_start_keeps_nobody_from_it(registry: Hanging, auth: Auth) -> None:
    registry.go_on.clear()
    watch = Watch(registry.registry, auth, cast(Hosts, Counted()), listed={})
    async with asyncio.timeout(5):
        await watch.look()
    assert not watch.is_read
    registry.go_on.set()


@pytest.mark.parametrize("changed", [KEY.revoked(), Key(key_id("wrn_" + "b" * 40), "red")])
async def test_a_key_that_is_changed_during_a_read_stays_so(registry: Hanging, auth: Auth, changed: Key) -> None:
    watch = Watch(registry.registry, auth, cast(Hosts, Counted()), listed={})
    await until_read(watch)
    registry.go_on.clear()
    await watch.look()  # has read the old record, and hangs
    registry.add_key(changed)
    auth.change(changed)
    registry.go_on.set()
    await until_read(watch)
    assert auth.keys[changed.id] == changed
    registry.add_key(KEY.ending(5))
    await watch.look()
    await until_read(watch)
    assert auth.keys[KEY.id] == KEY.ending(5)  # the next read counts again
