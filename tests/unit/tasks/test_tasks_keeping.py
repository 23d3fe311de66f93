"""What a guest tells of a task's work is bounded by us, not by it."""

from collections.abc import AsyncIterator

import pytest

from poold.errors import GuestError
from poold.tasks.keeping import at_most


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"four"


async def test_a_guest_that_tells_no_more_than_asked_is_heard_to_its_end() -> None:
    async def told() -> AsyncIterator[bytes]:
        yield b"four"
        yield b"more"

    assert [chunk async for chunk in at_most(told(), 8)] == [b"four", b"more"]


async def test_a_guest_that_tells_on_and_on_is_broken_off() -> None:
    chunks = at_most(endless(), 10)
    assert [await anext(chunks), await anext(chunks)] == [b"four", b"four"]
    with pytest.raises(GuestError, match="more than the 10 bytes"):
        await anext(chunks)
