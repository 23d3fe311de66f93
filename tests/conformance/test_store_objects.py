"""What every store promises of its objects: written, read, replaced, removed and listed."""

import hashlib

import pytest

from poold.store import MAX_BYTES
from poold.store.errors import BadKey, Conflict, NoObject, Refused, WrongContent
from tests.conformance.stores import Bench, all_of, content_of, keys_of, some_bytes

BAD_KEYS = (
    "", "/", "a/", "/a", "a//b", ".", "..", "../x", "a/..", "a/../../x", "a/./b", ".locks/00", ".new/x", "a/.b", "-a",
    "a\0b", "a\nb", "a b", "a\\b", "ä", "a%2e%2e/b", "a?b", "a#b", "a*b", "~", "a" * 201, "a/" * 401 + "a",
)  # fmt: skip


async def test_what_was_written_is_read(shelf: Bench) -> None:
    written = await shelf.store.put("folder/name", b"content")
    blob = await shelf.store.get("folder/name")
    assert blob.data == b"content"
    assert blob.entry == written == await shelf.store.head("folder/name")
    assert (written.key, written.bytes) == ("folder/name", 7)
    assert written.sha256 == hashlib.sha256(b"content").hexdigest()


async def test_who_opens_it_later_finds_it(shelf: Bench) -> None:
    written = await shelf.store.create("a", b"1")
    async with shelf.opened_again() as again:
        assert (await again.get("a")).entry == written
        await again.put("a", b"2")
    assert (await shelf.store.get("a")).data == b"2"


async def test_what_is_not_there_is_no_object(shelf: Bench) -> None:
    for missing in ("a", "a/b", "b/c"):
        with pytest.raises(NoObject):
            await shelf.store.get(missing)
        with pytest.raises(NoObject):
            await shelf.store.head(missing)
        with pytest.raises(NoObject):
            async with shelf.store.read(missing):
                pass
        await shelf.store.delete(missing)


async def test_put_replaces_whatever_was_there_and_its_tag_is_another(shelf: Bench) -> None:
    first = await shelf.store.put("a", b"one")
    second = await shelf.store.put("a", b"two")
    assert first.tag != second.tag
    assert (await shelf.store.get("a")).data == b"two"


async def test_create_succeeds_once(shelf: Bench) -> None:
    await shelf.store.create("a", b"one")
    with pytest.raises(Conflict):
        await shelf.store.create("a", b"two")
    assert (await shelf.store.get("a")).data == b"one"
    await shelf.store.delete("a")
    await shelf.store.create("a", b"two")


async def test_replace_wants_the_object_that_it_knows(shelf: Bench) -> None:
    first = await shelf.store.create("a", b"one")
    second = await shelf.store.replace("a", b"two", first.tag)
    with pytest.raises(Conflict):
        await shelf.store.replace("a", b"three", first.tag)
    assert (await shelf.store.get("a")).data == b"two"
    await shelf.store.replace("a", b"three", second.tag)
    await shelf.store.delete("a")
    with pytest.raises(Conflict):
        await shelf.store.replace("a", b"four", second.tag)
    assert await keys_of(shelf.store) == []


async def test_delete_with_a_tag_removes_that_object_and_no_other(shelf: Bench) -> None:
    first = await shelf.store.create("a", b"one")
    second = await shelf.store.put("a", b"two")
    with pytest.raises(Conflict):
        await shelf.store.delete("a", first.tag)
    assert (await shelf.store.get("a")).data == b"two"
    await shelf.store.delete("a", second.tag)
    with pytest.raises(NoObject):
        await shelf.store.get("a")
    await shelf.store.delete("a", second.tag)


async def test_an_empty_object_is_one(shelf: Bench) -> None:
    await shelf.store.create("a", b"")
    with pytest.raises(Conflict):
        await shelf.store.create("a", b"")
    assert (await shelf.store.get("a")).data == b""
    assert await all_of(shelf.store, "a") == b""
    written = await shelf.store.write("b", content_of(b""))
    assert (written.bytes, await all_of(shelf.store, "b")) == (0, b"")


@pytest.mark.parametrize("size", [1, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, 20 << 20])
async def test_what_is_written_in_pieces_is_read_in_pieces(shelf: Bench, size: int) -> None:
    data = some_bytes(size)
    told: list[tuple[int, int]] = []
    written = await shelf.store.write("a/large", content_of(data), lambda done, every: told.append((done, every)))
    assert (written.bytes, written.sha256) == (size, hashlib.sha256(data).hexdigest())
    assert await shelf.store.head("a/large") == written
    assert await all_of(shelf.store, "a/large") == data
    assert told == sorted(told)
    assert told[-1] == (size, size)


@pytest.mark.parametrize(
    ("start", "end"), [(0, 5), (3, 9), (5, None), (0, None), (9, 99), (50, 60), (4, 4), (20, None)]
)
async def test_a_part_is_read_as_asked_for(shelf: Bench, start: int, end: int | None) -> None:
    await shelf.store.put("a", b"0123456789")
    assert await all_of(shelf.store, "a", start=start, end=end) == b"0123456789"[start:end]


async def test_a_part_of_a_large_object_crosses_its_pieces(shelf: Bench) -> None:
    data = some_bytes(20 << 20)
    await shelf.store.write("a", content_of(data))
    for start, end in ((0, 10), ((8 << 20) - 3, (8 << 20) + 3), (1, 17 << 20), (19 << 20, None)):
        assert await all_of(shelf.store, "a", start=start, end=end) == data[start:end]


async def test_content_that_is_not_what_was_said_gets_no_name(shelf: Bench) -> None:
    await shelf.store.put("a", b"before")
    for size in (100, 9 << 20):
        right, wrong = some_bytes(size, 1), some_bytes(size, 2)
        said = content_of(right)
        for data in (wrong, right[:-1], right + b"x"):
            content = type(said)(content_of(data).chunks, said.bytes, said.sha256)
            with pytest.raises(WrongContent):
                await shelf.store.write("a", content)
    assert (await shelf.store.get("a")).data == b"before"


async def test_what_the_source_raises_is_raised_and_nothing_is_left(shelf: Bench) -> None:
    class SourceBroke(Exception):
        pass

    async def chunks():  # type: ignore[no-untyped-def]
        for _ in range(12):
            yield bytes(1 << 20)
        raise SourceBroke

    content = type(content_of(b""))(chunks, 32 << 20, "0" * 64)
    with pytest.raises(SourceBroke):
        await shelf.store.write("a", content)
    assert await keys_of(shelf.store) == []


async def test_what_is_read_or_written_at_once_is_bounded(shelf: Bench) -> None:
    with pytest.raises(Refused):
        await shelf.store.put("a", bytes(MAX_BYTES + 1))
    await shelf.store.put("a", bytes(MAX_BYTES))
    assert len((await shelf.store.get("a")).data) == MAX_BYTES
    await shelf.store.write("b", content_of(bytes(MAX_BYTES + 1)))
    with pytest.raises(Refused):
        await shelf.store.get("b")


async def test_keys_that_lead_elsewhere_are_refused(shelf: Bench) -> None:
    for key in BAD_KEYS:
        for work in (
            shelf.store.get(key),
            shelf.store.head(key),
            shelf.store.put(key, b"x"),
            shelf.store.create(key, b"x"),
            shelf.store.replace(key, b"x", "tag"),
            shelf.store.write(key, content_of(b"x")),
            shelf.store.delete(key),
        ):
            with pytest.raises(BadKey):
                await work
        with pytest.raises(BadKey):
            async with shelf.store.read(key):
                pass
    for prefix in ("..", "../", "/", "a/../b", ".new/", "a//"):
        with pytest.raises(BadKey):
            await keys_of(shelf.store, prefix)
    assert await keys_of(shelf.store) == []


async def test_a_listing_has_what_begins_so_and_goes_on_where_it_was_left(shelf: Bench) -> None:
    names = ["a/1", "a/2", "a/20", "a/3", "a/b/1", "ab/1", "a-b", "b", "owner@example.org/Name_1"]
    written = {name: await shelf.store.put(name, name.encode()) for name in names}
    listed = [entry async for entry in shelf.store.list("")]
    assert sorted(entry.key for entry in listed) == sorted(names)
    assert {entry.key: (entry.bytes, entry.tag) for entry in listed} == {
        key: (entry.bytes, entry.tag) for key, entry in written.items()
    }
    assert [key for key in await keys_of(shelf.store, "a/") if "b" not in key] == ["a/1", "a/2", "a/20", "a/3"]
    assert await keys_of(shelf.store, "a/2") == ["a/2", "a/20"]
    assert sorted(await keys_of(shelf.store, "a")) == ["a-b", "a/1", "a/2", "a/20", "a/3", "a/b/1", "ab/1"]
    assert await keys_of(shelf.store, "nothing") == []
    everything = [entry.key for entry in listed]
    for at, key in enumerate(everything):
        assert await keys_of(shelf.store, "", after=key) == everything[at + 1 :]


async def test_what_was_removed_is_not_listed(shelf: Bench) -> None:
    for name in ("a/b/c", "a/b/d", "e"):
        await shelf.store.put(name, b"")
    await shelf.store.delete("a/b/c")
    assert await keys_of(shelf.store) == ["a/b/d", "e"]
    await shelf.store.delete("a/b/d")
    assert await keys_of(shelf.store, "a") == []


async def test_a_listing_of_more_than_a_page_has_each_once(shelf: Bench) -> None:
    import asyncio

    names = [f"many/{number:05d}" for number in range(1100)]
    for at in range(0, len(names), 50):
        await asyncio.gather(*(shelf.store.put(name, b"") for name in names[at : at + 50]))
    assert await keys_of(shelf.store, "many/") == names
    assert await keys_of(shelf.store, "many/", after=names[1050]) == names[1051:]
