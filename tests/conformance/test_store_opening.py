"""A store at the start of a host: whether it can do what is needed, and whose it is."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from poold.store import Blob, Entry, Store
from poold.store.errors import Conflict, Corrupt, WrongStore
from poold.store.opening import CLUSTER_KEY, REMEMBERED, open_shared, probe
from tests.conformance.stores import Bench, keys_of


async def _opened(shelf: Bench, state_dir: Path) -> str:
    async with open_shared(shelf.where, state_dir) as shared:
        assert shared.place == str(shelf.where)
        return shared.cluster


async def test_the_first_host_makes_the_cluster_and_others_join_it(shelf: Bench, tmp_path: Path) -> None:
    first = await _opened(shelf, tmp_path / "one")
    assert await _opened(shelf, tmp_path / "two") == first == await _opened(shelf, tmp_path / "one")
    assert await keys_of(shelf.store) == [CLUSTER_KEY]


async def test_hosts_that_start_at_once_are_of_one_cluster(shelf: Bench, tmp_path: Path) -> None:
    clusters = await asyncio.gather(*(_opened(shelf, tmp_path / str(number)) for number in range(5)))
    assert len(set(clusters)) == 1
    assert await keys_of(shelf.store) == [CLUSTER_KEY]


async def test_another_clusters_store_is_refused_and_nothing_in_it_changes(shelf: Bench, tmp_path: Path) -> None:
    await _opened(shelf, tmp_path / "one")
    other = orjson.dumps({"version": 1, "id": f"cl-{'0' * 32}"})
    written = await shelf.store.put(CLUSTER_KEY, other)
    with pytest.raises(WrongStore, match=r"POOLD_STORE=.*cl-0000"):
        await _opened(shelf, tmp_path / "one")
    assert [entry.tag async for entry in shelf.store.list("")] == [written.tag]
    assert await _opened(shelf, tmp_path / "new") == f"cl-{'0' * 32}"


async def test_a_store_that_is_suddenly_empty_is_refused(shelf: Bench, tmp_path: Path) -> None:
    """As a folder is that is not mounted."""
    await _opened(shelf, tmp_path / "one")
    await shelf.store.delete(CLUSTER_KEY)
    with pytest.raises(WrongStore, match=REMEMBERED):
        await _opened(shelf, tmp_path / "one")
    assert await keys_of(shelf.store) == []


async def test_a_folder_that_is_not_mounted_is_refused_before_anything_is_made_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "mounted"
    async with open_shared(folder, tmp_path / "one"):
        pass
    folder.rename(tmp_path / "elsewhere")
    folder.mkdir()
    with pytest.raises(WrongStore, match="is it mounted"):
        async with open_shared(folder, tmp_path / "one"):
            pass
    assert list(folder.iterdir()) == []
    folder.rmdir()
    with pytest.raises(WrongStore, match="is it mounted"):
        async with open_shared(folder, tmp_path / "one"):
            pass
    assert not folder.exists()


@pytest.mark.parametrize(
    "told", [b"", b"{}", b"[]", b"\xff", b'{"version": 2, "id": "cl-1"}', b'{"version": 1, "id": 1}']
)
async def test_a_cluster_of_another_version_is_refused(shelf: Bench, tmp_path: Path, told: bytes) -> None:
    await shelf.store.put(CLUSTER_KEY, told)
    with pytest.raises(WrongStore, match="not what this version"):
        await _opened(shelf, tmp_path / "one")
    assert (await shelf.store.get(CLUSTER_KEY)).data == told


async def test_a_damaged_cluster_object_is_refused(shelf: Bench, tmp_path: Path) -> None:
    await _opened(shelf, tmp_path / "one")
    shelf.back.alter(CLUSTER_KEY, lambda data: data[:-2] + b"x}")
    with pytest.raises(Corrupt):
        await _opened(shelf, tmp_path / "one")
    assert await keys_of(shelf.store) == [CLUSTER_KEY]


class Careless:
    """A store that does one thing as it should not, and else what the real one does."""

    def __init__(self, store: Store, **wrong: Any) -> None:
        self._store, self._wrong = store, wrong

    def __getattr__(self, name: str) -> Any:
        return self._wrong.get(name, getattr(self._store, name))


async def test_a_store_that_can_do_it_all_is_taken_and_left_clean(shelf: Bench) -> None:
    await probe(shelf.store, shelf.where)
    assert await keys_of(shelf.store) == []


async def test_a_store_that_creates_twice_is_refused(shelf: Bench) -> None:
    with pytest.raises(WrongStore, match="If-None-Match"):
        await probe(Careless(shelf.store, create=shelf.store.put), "there")
    assert await keys_of(shelf.store) == []


async def test_a_store_that_does_not_compare_is_refused(shelf: Bench) -> None:
    async def replace(key: str, data: bytes, _tag: str) -> Entry:
        return await shelf.store.put(key, data)

    with pytest.raises(WrongStore, match="If-Match"):
        await probe(Careless(shelf.store, replace=replace), "there")


async def test_a_store_that_removes_what_it_should_not_is_refused(shelf: Bench) -> None:
    async def delete(key: str, _tag: str | None = None) -> None:
        await shelf.store.delete(key)

    with pytest.raises(WrongStore, match="removed"):
        await probe(Careless(shelf.store, delete=delete), "there")


async def test_a_store_that_reads_what_was_there_before_is_refused(shelf: Bench) -> None:
    first: dict[str, Blob] = {}

    async def get(key: str) -> Blob:
        return first.setdefault(key, await shelf.store.get(key))

    with pytest.raises(WrongStore, match="former"):
        await probe(Careless(shelf.store, get=get), "there")


async def test_a_store_that_always_refuses_is_told_apart(shelf: Bench) -> None:
    async def replace(key: str, _data: bytes, _tag: str) -> Entry:
        raise Conflict(key, "is another one by now")

    with pytest.raises(WrongStore, match="cannot do what hosts need"):
        await probe(Careless(shelf.store, replace=replace), "there")
    assert await keys_of(shelf.store) == []
