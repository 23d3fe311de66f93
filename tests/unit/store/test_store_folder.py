"""What only a folder can do to its store: go away, hang, hold links, and keep the halves of those who died."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poold.store import header
from poold.store.errors import BadKey, Corrupt, Full, Refused, Unreachable
from poold.store.folder import FolderStore, open_folder
from poold.store.header import Header
from poold.store.keys import checked_key, checked_prefix


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def store(folder: Path) -> AsyncIterator[FolderStore]:
    async with open_folder(folder, limit_s=5) as store:
        yield store


async def test_a_folder_that_is_not_mounted_is_no_empty_store(store: FolderStore, folder: Path) -> None:
    await store.put("a", b"x")
    folder.rename(folder.with_name("elsewhere"))
    folder.mkdir()
    with pytest.raises(Unreachable, match="mounted"):
        await store.get("a")
    with pytest.raises(Unreachable, match="mounted"):
        [entry async for entry in store.list("")]
    with pytest.raises(Unreachable):
        await store.put("a", b"x")
    with pytest.raises(Unreachable):
        await store.delete("a")


async def test_what_writers_left_is_removed_after_a_day_and_not_before(store: FolderStore, folder: Path) -> None:
    await store.put("a", b"x")
    for name in ("old", "young"):
        (folder / ".new" / name).write_bytes(b"half")
    os.utime(folder / ".new" / "old", (time.time() - 2 * 86_400,) * 2)
    await store.sweep()
    assert [path.name for path in (folder / ".new").iterdir()] == ["young"]
    assert (await store.get("a")).data == b"x"


async def test_a_link_is_not_followed(store: FolderStore, folder: Path) -> None:
    (folder / "a").symlink_to("/etc/passwd")
    with pytest.raises(Refused):
        await store.get("a")
    os.mkfifo(folder / "pipe")
    with pytest.raises(Refused):
        await store.get("pipe")


async def test_one_key_is_not_the_folder_of_another(store: FolderStore) -> None:
    await store.put("a/b", b"x")
    for work in (store.put("a", b"y"), store.create("a", b"y"), store.put("a/b/c", b"y"), store.create("a/b/c", b"y")):
        with pytest.raises(Refused):
            await work
    with pytest.raises(Refused):
        await store.get("a")
    assert (await store.get("a/b")).data == b"x"


async def test_a_file_system_that_hangs_costs_a_call_its_limit_and_nothing_more(folder: Path) -> None:
    async with open_folder(folder, limit_s=0.2) as store:
        await store.put("a", b"x")
        hangs = threading.Event()
        with pytest.raises(Unreachable, match="did not answer"):
            await store._do(lambda _: hangs.wait(60))
        assert (await store.get("a")).data == b"x"
        hangs.set()


async def test_a_full_disk_is_told_as_such_and_leaves_nothing(store: FolderStore, folder: Path) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(Full):
            await store.put("a", bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list((folder / ".new").iterdir()) == []
    await store.put("a", bytes(100_000))


async def test_a_damaged_header_is_damage(store: FolderStore, folder: Path) -> None:
    await store.put("a", b"content")
    whole = (folder / "a").read_bytes()
    for at in range(header.LENGTH):
        (folder / "a").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(Corrupt):
            await store.get("a")
    for length in (0, 1, header.LENGTH - 1, header.LENGTH):
        (folder / "a").write_bytes(whole[:length])
        with pytest.raises(Corrupt):
            await store.head("a")
    assert [(entry.key, entry.tag) async for entry in store.list("")] == [("a", "")]


async def test_who_reads_has_the_object_that_was_there(store: FolderStore) -> None:
    await store.put("a", b"1" * (3 << 20))
    async with store.read("a") as reading:
        first = await anext(reading.chunks)
        await store.put("a", b"2" * (3 << 20))
        await store.delete("a")
        rest = b"".join([piece async for piece in reading.chunks])
    assert first + rest == b"1" * (3 << 20)


async def test_many_calls_at_once_share_a_few_threads(store: FolderStore) -> None:
    await asyncio.gather(*(store.put(f"many/{number}", b"x") for number in range(200)))
    assert len([thread for thread in threading.enumerate() if thread.name.startswith("store")]) <= 8
    assert len([entry async for entry in store.list("many/")]) == 200


@given(st.integers(0, 10**19), st.binary(min_size=32, max_size=32), st.binary(min_size=16, max_size=16))
def test_a_header_is_read_as_it_was_written(size: int, sha256: bytes, tag: bytes) -> None:
    told = Header(size, sha256.hex(), tag.hex())
    assert len(told.line()) == header.LENGTH
    assert header.parse(told.line()) == told


@given(st.binary(max_size=2 * header.LENGTH))
def test_anything_else_is_no_header(line: bytes) -> None:
    assert header.parse(line) is None


@given(st.text(alphabet=st.sampled_from("ab./-_@\0 é"), max_size=30))
def test_a_key_that_is_taken_stays_in_its_folder(key: str) -> None:
    try:
        checked_key(key)
    except BadKey:
        return
    path = os.path.normpath(os.path.join("/store", key))
    assert path == f"/store/{key}"
    assert not any(part.startswith(".") for part in key.split("/"))
    for length in range(len(key) + 1):
        checked_prefix(key[:length])
