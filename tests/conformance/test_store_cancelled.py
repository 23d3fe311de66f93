"""Cancellation wherever a store waits: all of an object or nothing, and no half of it anywhere."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from poold.store import Entry, Store
from poold.store.errors import Conflict, NoObject
from tests.conformance.cancelling import cancelled_at
from tests.conformance.stores import Bench, all_of, content_of, some_bytes

BEFORE, AFTER = b"before", some_bytes(17 << 20)
SMALL = b"after"
Work = Callable[[Store, Entry], Coroutine[Any, Any, object]]
WRITES: dict[str, Work] = {
    "put": lambda store, known: store.put(known.key, SMALL),
    "replace": lambda store, known: store.replace(known.key, SMALL, known.tag),
    "write": lambda store, known: store.write(known.key, content_of(AFTER, 4 << 20)),
}


async def _settled(store: Store, key: str) -> bytes:
    """What is there. A server that has the whole request does it, though nobody waits any more."""
    for _ in range(3):
        with contextlib.suppress(Conflict):
            return await all_of(store, key)
    raise AssertionError("it changes and changes")


@pytest.mark.parametrize("name", WRITES)
async def test_a_cancelled_write_is_there_as_a_whole_or_not_at_all(shelf: Bench, name: str) -> None:
    """The fixture looks for halves and for uploads that nobody ended."""
    for place in itertools.count():
        assert place < 500
        known = await shelf.store.put(f"writes/{place}", BEFORE)
        done = await cancelled_at(place, WRITES[name](shelf.store, known))
        assert await _settled(shelf.store, known.key) in (BEFORE, SMALL, AFTER)
        assert shelf.back.left_over() == []
        if done is not None:
            break


async def test_a_cancelled_create_can_be_repeated_or_was_done(shelf: Bench) -> None:
    for place in itertools.count():
        assert place < 500
        key = f"creates/{place}"
        done = await cancelled_at(place, shelf.store.create(key, SMALL))
        try:
            assert (await shelf.store.get(key)).data == SMALL
        except NoObject:
            with contextlib.suppress(Conflict):  # it was done after all
                await shelf.store.create(key, SMALL)
            assert (await shelf.store.get(key)).data == SMALL
        if done is not None:
            break


async def test_a_cancelled_read_leaves_nothing_open(shelf: Bench) -> None:
    await shelf.store.write("a", content_of(AFTER))
    for place in itertools.count():
        assert place < 500
        if await cancelled_at(place, all_of(shelf.store, "a")) is not None:
            break
    assert [task for task in asyncio.all_tasks() if "_piece" in repr(task)] == []
    assert await all_of(shelf.store, "a") == AFTER


async def test_who_stops_reading_early_leaves_nothing_behind(shelf: Bench) -> None:
    await shelf.store.write("a", content_of(AFTER))
    for _ in range(40):  # more than there are requests at once
        async with shelf.store.read("a") as reading:
            async for piece in reading.chunks:
                assert piece
                break
    assert [task for task in asyncio.all_tasks() if "_piece" in repr(task)] == []
