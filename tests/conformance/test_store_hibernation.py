"""A depot keeps its promises with either kind of store: files come back, golden memories are there once."""

import asyncio
import os
from pathlib import Path

import pytest

from poold.hibernate import packing
from poold.hibernate.errors import Damaged
from poold.hibernate.goldens import Goldens, Notes
from poold.hibernate.packing import Told
from poold.store import silent
from tests.conformance.stores import Bench
from tests.unit.hibernate.hibernate_files import MIB, PREFIX, digest, noise, pack, sparse_file, unpack


class Noted:
    """What is to be removed if it comes to nothing."""

    def __init__(self) -> None:
        self.prefixes: set[str] = set()

    async def add(self, prefix: str) -> None:
        self.prefixes.add(prefix)

    async def drop(self, prefix: str) -> None:
        self.prefixes.discard(prefix)

    @property
    def notes(self) -> Notes:
        return Notes(self.add, self.drop)


async def test_files_go_there_and_come_back(shelf: Bench, tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "a", 256 * MIB, {MIB: noise(20 * MIB), 200 * MIB: noise(MIB, 1)})
    file = await pack(shelf.store, path)
    await packing.check(shelf.store, PREFIX, [file], Told(silent, 0))
    assert digest(await unpack(shelf.store, file, tmp_path / "b")) == digest(path)
    await shelf.store.delete(PREFIX + file.parts[1].name)
    with pytest.raises(Damaged, match=file.parts[1].name):
        await unpack(shelf.store, file, tmp_path / "c")


async def test_of_hosts_that_keep_one_golden_memory_at_once_one_counts_and_all_can_fetch_it(
    shelf: Bench, tmp_path: Path
) -> None:
    memory = sparse_file(tmp_path / "memory", 64 * MIB, {4096: noise(9 * MIB)})
    hosts = []
    for number in range(4):
        noted = Noted()
        hosts.append((noted, Goldens(shelf.store, tmp_path / str(number), noted.notes, os.urandom)))
    names = await asyncio.gather(*(goldens.keep(memory) for _, goldens in hosts))
    assert len(set(names)) == 1
    manifests = [entry.key async for entry in shelf.store.list("goldens/") if entry.key.endswith("manifest")]
    assert len(manifests) == 1
    for noted, goldens in hosts:
        for prefix in noted.prefixes:  # those who lost sweep away what they wrote
            assert not await goldens.is_counted(prefix)
            for key in [entry.key async for entry in shelf.store.list(prefix)]:
                await shelf.store.delete(key)
    last = Goldens(shelf.store, tmp_path / "last", Noted().notes, os.urandom)
    assert digest(await last.fetch(names[0])) == digest(memory)
