"""A host tells gateways of itself: in the registry, once a second and when something changes, and to whoever asks."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from contract.hosts import Host as Record
from contract.models import Shape
from contract.ring import Room
from poold import registry as registry_module
from poold.api.observe import is_ready, record
from poold.registry import InFolder, Registry
from tests.unit.poold.poold_host import MACHINE_MB, SLOTS, Host, open_host

LIMIT_S = 60.0


@dataclass
class Written:
    """A registry whose host is what the test says."""

    folder: Path
    host: Record = field(default_factory=lambda: Record("here", "http://127.0.0.1:7070"))

    async def record(self) -> Record:
        self.host = replace(self.host, beat=self.host.beat + 1)
        return self.host

    @contextlib.asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        registry = Registry(InFolder(self.folder), self.record, lambda: self.host.ready)
        async with asyncio.timeout(LIMIT_S), registry.beating():
            yield

    @property
    def path(self) -> Path:
        return self.folder / "hosts" / "here.json"

    def read(self) -> Record:
        return Record.decode(self.path.read_bytes())

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await asyncio.sleep(0.01)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    monkeypatch.setattr(registry_module, "EVERY_S", 0.1)
    return Written(tmp_path / "registry")


async def test_the_record_is_there_from_the_beginning_and_its_beat_grows(written: Written) -> None:
    async with written.beating():
        first = written.read()
        assert first == written.host
        await written.until(lambda: written.read().beat >= first.beat + 3)


async def test_a_host_that_leaves_says_so_and_its_record_stays(written: Written) -> None:
    async with written.beating():
        assert written.read().ready
    assert not written.read().ready
    assert written.read().room.left == 0
    assert [path.name for path in written.path.parent.iterdir()] == ["here.json"]


async def test_a_change_is_told_before_the_next_beat_is_due(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "EVERY_S", 1000)
    async with written.beating():
        for is_now in (False, True):
            written.host = replace(written.host, ready=is_now)
            await written.until(lambda: written.read().ready is is_now)  # noqa: B023


async def test_who_reads_reads_all_of_it(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "EVERY_S", 0)
    many = tuple(Shape(f"image-{number}", 1, 256, 1024) for number in range(500))
    written.host = replace(written.host, images=many)

    def read_often() -> set[tuple[Shape, ...]]:
        return {written.read().images for _ in range(300)}

    async with written.beating():
        assert await asyncio.to_thread(read_often) == {many}


async def test_a_registry_that_cannot_be_written_is_logged_once_and_tried_again(
    written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    written.folder.write_text("no folder")
    with caplog.at_level(logging.INFO):
        async with written.beating():
            await written.until(lambda: written.host.beat > 3)
            written.folder.unlink()
            await written.until(written.path.exists)
            await written.until(lambda: "written again" in caplog.text)
    assert caplog.text.count("cannot be written") == 1


# What the record says.


async def asked(host: Host) -> Record:
    """The record, as a gateway that asks gets it."""
    reply = await host.ask("GET", "/v1/host")
    assert reply.status == 200
    return Record.decode(reply.body)


async def test_the_record_says_what_the_host_has(tmp_path: Path) -> None:
    async with open_host(tmp_path, warm=2) as host:
        await host.ready()
        found = await asked(host)
        assert (found.name, found.version, found.default_image) == ("here", "0", "host")
        assert found.address == f"http://127.0.0.1:{host.port}"
        assert found.slots == Room(SLOTS, SLOTS)  # a warm machine is room
        assert found.memory_mb == Room(SLOTS * MACHINE_MB, SLOTS * MACHINE_MB)
        assert found.images == (Shape("host", 1, 256, 1024),)
        limits = host.services.facts.limits
        assert (found.vcpus, found.max_memory_mb, found.max_disk_mb) == (limits.vcpus, limits.memory_mb, limits.disk_mb)
        assert (found.draining, found.ready) == (False, True)
        assert (await asked(host)).beat > found.beat
        assert replace(await record(host.services), beat=0) == replace(found, beat=0)


async def test_the_record_counts_what_runs_and_what_is_paused_not(tmp_path: Path) -> None:
    async with open_host(tmp_path, slots=4) as host:
        first, _ = await host.create(), await host.create()
        await host.ready()
        await host.until(lambda: host.pool.keeper._filling is None)
        assert (await asked(host)).slots == Room(4, 2)
        await host.ask("POST", f"/v1/sandboxes/{first}/pause")
        found = await asked(host)
        assert (found.slots, found.memory_mb) == (Room(4, 3), Room(4 * MACHINE_MB, 3 * MACHINE_MB))


async def test_a_host_that_is_drained_takes_nothing_and_says_so(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        await host.admin("POST", "/admin/drain", {})
        found = await asked(host)
        assert (found.draining, found.ready, found.room.left) == (True, False, 0)
        assert not is_ready(host.services)
        await host.admin("POST", "/admin/undrain")
        assert (await asked(host)).ready
