"""Objects that are not what was written: refused, told apart from those that are missing, and left as they are."""

import pytest

from poold.store.errors import Conflict, Corrupt, NoObject
from tests.conformance.stores import Bench, all_of, content_of, keys_of, some_bytes


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("size", [10, 9 << 20])
@pytest.mark.parametrize("change", [flipped, lambda data: data[:-1], lambda data: data + b"x", lambda _: b""])
async def test_a_damaged_object_is_refused_and_stays(shelf: Bench, size: int, change) -> None:  # type: ignore[no-untyped-def]
    data = some_bytes(size)
    await shelf.store.write("a", content_of(data))
    shelf.back.alter("a", change)
    with pytest.raises(Corrupt, match="'a'"):
        await shelf.store.get("a")
    with pytest.raises(Corrupt, match="'a'"):
        await all_of(shelf.store, "a")
    assert await keys_of(shelf.store) == ["a"]
    await shelf.store.put("a", b"well again")
    assert (await shelf.store.get("a")).data == b"well again"


async def test_what_nobody_wrote_through_a_store_is_no_good_object(shelf: Bench) -> None:
    shelf.back.plant("folder/strange", b"anything")
    with pytest.raises(Corrupt):
        await shelf.store.get("folder/strange")
    with pytest.raises(Corrupt):
        await all_of(shelf.store, "folder/strange")
    with pytest.raises(Conflict):
        await shelf.store.create("folder/strange", b"mine")
    assert await keys_of(shelf.store, "folder/") == ["folder/strange"]
    await shelf.store.delete("folder/strange")
    with pytest.raises(NoObject):
        await shelf.store.get("folder/strange")


async def test_a_damaged_object_is_not_taken_for_the_one_that_was_known(shelf: Bench) -> None:
    known = await shelf.store.create("a", b"0123456789")
    shelf.back.alter("a", lambda data: data[:5])
    with pytest.raises((Conflict, Corrupt)):
        await shelf.store.replace("a", b"mine", known.tag)
    with pytest.raises((Conflict, Corrupt)):
        await shelf.store.delete("a", known.tag)
    assert await keys_of(shelf.store) == ["a"]
