"""What nobody needs any more is swept out of either kind of store, and nothing else is."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from poold import sweeping
from poold.hibernate import goldens, manifest
from poold.hibernate.goldens import Goldens
from poold.hibernate.manifest import File, Frame, Manifest, Part
from poold.store import Store
from poold.sweeping import Swept
from tests.conformance.stores import Bench
from tests.conformance.test_store_hibernation import Noted
from tests.unit.hibernate.hibernate_files import MIB, noise, sparse_file
from tests.unit.lease.lease_made import lease, taken

FUTURE_MS = 1 << 52  # everything is older
SHA = "0" * 64
FILE = File(10, SHA, (Part("drive-00001", SHA, (Frame(5, 10),)),))


def manifest_of(sandbox: str, golden: str | None) -> bytes:
    facts = {"shape": {"image": "a"}}
    return manifest.encode(Manifest("c1", sandbox, "vm-1", 2, 3, "qemu", facts, {}, golden, {"drive": FILE}))


async def golden_in(store: Store, folder: Path, seed: int) -> str:
    folder.mkdir(exist_ok=True)
    memory = sparse_file(folder / f"memory-{seed}", 2 * MIB, {4096: noise(MIB, seed)})
    return await Goldens(store, folder / "goldens", Noted().notes, os.urandom).keep(memory)


async def keys(store: Store) -> set[str]:
    return {entry.key async for entry in store.list("")}


async def swept(store: Store, *, named: frozenset[str] = frozenset(), before_ms: int = FUTURE_MS) -> Swept:
    return await sweeping.sweep(store, named=named, before_ms=before_ms, is_dry=False)


async def test_a_golden_memory_that_no_manifest_names_goes_and_the_others_stay(shelf: Bench, tmp_path: Path) -> None:
    store = shelf.store
    used, unused = [await golden_in(store, tmp_path / "host", seed) for seed in (1, 2)]
    await store.put("hibernated/sb-1/2-aa/drive-00001", b"a part")
    await store.put("hibernated/sb-1/2-aa/manifest", manifest_of("sb-1", used))
    await store.put("hibernated/sb-2/1-bb/manifest", manifest_of("sb-2", None))
    before = await keys(store)
    dry = await sweeping.sweep(store, named=frozenset(), before_ms=FUTURE_MS, is_dry=True)
    assert await keys(store) == before
    found = await swept(store)
    assert [each["prefix"] for each in found.view()["swept"]] == [f"goldens/{unused}/"]
    assert dry.view()["swept"] == found.view()["swept"]
    assert before - await keys(store) == {key for key in before if key.startswith(f"goldens/{unused}/")}
    assert await golden_in(store, tmp_path / "again", 2) == unused  # and it comes back when somebody needs it


async def test_what_is_young_stays_whatever_it_is(shelf: Bench, tmp_path: Path) -> None:
    await golden_in(shelf.store, tmp_path / "host", 1)
    await shelf.store.put("hibernated/sb-1/2-aa/drive-00001", b"a part")
    await shelf.store.put("leases/a", lease("a", epoch=9, root=9).encode())
    await shelf.store.put("ledger/a/1/ltx", b"a replica")
    before = await keys(shelf.store)
    found = await swept(shelf.store, before_ms=1_000_000_000_000)
    assert (found.view()["swept"], await keys(shelf.store)) == ([], before)


@pytest.mark.parametrize("data", [b"nonsense", b'{"format": 99}', None])
async def test_one_manifest_that_cannot_be_read_keeps_every_golden_memory(
    shelf: Bench, tmp_path: Path, data: bytes | None
) -> None:
    await golden_in(shelf.store, tmp_path / "host", 1)
    key = "hibernated/sb-1/2-aa/manifest"
    await shelf.store.put(key, data or manifest_of("sb-1", None))
    if data is None:
        shelf.back.alter(key, lambda content: content[:-1] + b"!")
    before = await keys(shelf.store)
    found = await swept(shelf.store)
    assert (found.found, await keys(shelf.store)) == ([], before)
    assert key in found.unsure[0]


async def test_parts_without_a_manifest_go_unless_the_ledger_knows_of_them(shelf: Bench) -> None:
    for prefix in ("hibernated/sb-1/1-aa/", "hibernated/sb-2/1-bb/"):
        await shelf.store.put(f"{prefix}drive-00001", b"a part")
    found = await swept(shelf.store, named=frozenset({"hibernated/sb-2/1-bb/"}))
    assert [each.prefix for each in found.found] == ["hibernated/sb-1/1-aa/"]
    assert await keys(shelf.store) == {"hibernated/sb-2/1-bb/drive-00001"}


async def test_a_replica_that_was_not_wholly_taken_in_stays(shelf: Bench) -> None:
    await shelf.store.put("leases/a", lease("a", epoch=9, root=8).encode())
    for epoch in (1, 2):
        shelf.back.plant(f"ledger/a/{epoch}/ltx/0/one.ltx", b"of Litestream")
    found = await swept(shelf.store, named=frozenset({"ledger/a/2/"}))
    assert [each.prefix for each in found.found] == ["ledger/a/1/"]


async def test_replicas_go_when_their_line_was_carried_on(shelf: Bench) -> None:
    store = shelf.store
    notes = (taken(root=5, last=6),)
    await store.put("leases/a", lease("a", epoch=9, root=8, taken=notes).encode())
    await store.put("leases/b", lease("b", epoch=4, root=0, taken=(taken(root=2, last=3),)).encode())
    shelf.back.plant("leases/c", b"no lease")
    for host in "abcd":
        for epoch in (1, 2, 4, 5, 6, 7, 8, 9, 10):
            shelf.back.plant(f"ledger/{host}/{epoch}/ltx/0/one.ltx", b"of Litestream")
    shelf.back.plant("ledger/a/strange/ltx", b"?")
    found = await swept(store)
    gone = sorted(each.prefix for each in found.found)
    assert gone == ["ledger/a/1/", "ledger/a/2/", "ledger/a/4/", "ledger/a/7/", "ledger/b/1/"]
    left = await keys(store)
    assert not [key for key in left if key.startswith(tuple(gone))]
    assert {f"ledger/{host}/1/ltx/0/one.ltx" for host in "cd"} | {"ledger/a/strange/ltx"} <= left
    assert any("leases/c" in why for why in found.unsure)


class Between:
    """Does something at the moment when a sweep has found what it will remove, or has just marked it."""

    def __init__(self, store: Store, when: Callable[[str], bool], what: Callable[[], object]) -> None:
        self._store, self._when, self._what = store, when, what
        self._is_done = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def put(self, key: str, data: bytes) -> object:
        entry = await self._store.put(key, data)
        await self._maybe(f"put {key}")
        return entry

    async def delete(self, key: str, tag: str | None = None) -> None:
        await self._maybe(f"delete {key}")
        await self._store.delete(key, tag)

    async def _maybe(self, doing: str) -> None:
        if not self._is_done and self._when(doing):
            self._is_done = True
            await self._what()  # type: ignore[misc]


async def test_a_host_that_hibernates_at_that_moment_has_its_golden_memory_afterwards(
    shelf: Bench, tmp_path: Path
) -> None:
    """Before the mark it is seen by its manifest, and after the mark it sees that."""
    for number, moment in enumerate((goldens.DYING, "delete goldens")):
        name = await golden_in(shelf.store, tmp_path / "host", number)

        async def hibernate(name: str = name, number: int = number) -> None:
            await shelf.store.put(f"hibernated/sb-1/{number}-aa/manifest", manifest_of("sb-1", name))
            await golden_in(shelf.store, tmp_path / "other", number)

        between = Between(shelf.store, lambda doing, moment=moment: moment in doing, hibernate)  # type: ignore[misc]
        await sweeping.sweep(between, named=frozenset(), before_ms=FUTURE_MS, is_dry=False)  # type: ignore[arg-type]
        assert between._is_done
        last = Goldens(shelf.store, tmp_path / f"last-{number}", Noted().notes, os.urandom)
        assert (await last.fetch(name)).is_file()


async def test_two_hosts_that_sweep_at_once_remove_the_same(shelf: Bench, tmp_path: Path) -> None:
    used, unused = [await golden_in(shelf.store, tmp_path / "host", seed) for seed in (1, 2)]
    await shelf.store.put("hibernated/sb-1/2-aa/manifest", manifest_of("sb-1", used))
    async with shelf.opened_again() as other:
        await asyncio.gather(swept(shelf.store), swept(other))
        await swept(other)
    assert not [key for key in await keys(shelf.store) if unused in key]
    last = Goldens(shelf.store, tmp_path / "last", Noted().notes, os.urandom)
    assert (await last.fetch(used)).is_file()
