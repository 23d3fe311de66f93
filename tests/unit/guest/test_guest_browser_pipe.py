"""What a browser says over its pipe: taken in pieces, bounded, and never believed."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from warren_guest.browser.pipe import MESSAGE_LIMIT, CallError, GoneError, Pipe


class Other:
    """The other end of a pipe, in the place of a browser."""

    def __init__(self) -> None:
        self._commands, theirs_in = os.pipe()
        theirs_out, self._answers = os.pipe()
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self.ended = 0
        self.pipe = Pipe(theirs_in, theirs_out, lambda *event: self.events.append(event), self._end)

    def _end(self) -> None:
        self.ended += 1

    async def read(self) -> dict[str, Any]:
        """The next message that it was sent; nobody sends two at once here."""
        data = await asyncio.to_thread(os.read, self._commands, 1 << 20)
        assert data.endswith(b"\0")
        message: dict[str, Any] = json.loads(data[:-1])
        return message

    async def say(self, data: bytes) -> None:
        def write() -> None:
            view = memoryview(data)
            while view:
                view = view[os.write(self._answers, view) :]

        await asyncio.to_thread(write)

    def hang_up(self) -> None:
        os.close(self._answers)
        self._answers = -1

    def close(self) -> None:
        self.pipe.close()
        os.close(self._commands)
        if self._answers >= 0:
            self.hang_up()


@pytest.fixture
async def other() -> AsyncIterator[Other]:
    other = Other()
    yield other
    other.close()


async def test_answers_find_their_calls_in_any_order_and_in_any_pieces(other: Other) -> None:
    one = asyncio.create_task(other.pipe.call("A.one", "s1", x=1))
    assert await other.read() == {"id": 1, "method": "A.one", "params": {"x": 1}, "sessionId": "s1"}
    two = asyncio.create_task(other.pipe.call("A.two"))
    assert await other.read() == {"id": 2, "method": "A.two", "params": {}}
    for byte in b'{"id":2,"result":{"n":2}}\0{"id":1,"result":{"n":1}}\0':
        await other.say(bytes([byte]))
    assert (await one, await two) == ({"n": 1}, {"n": 2})


async def test_what_is_no_message_is_passed_over(other: Other) -> None:
    call = asyncio.create_task(other.pipe.call("A.b"))
    await other.read()
    await other.say(b'\0not json\0[1]\0{"id":"1"}\0{"id":99,"result":{}}\0{"method":1}\0{"method":"E","params":[]}\0')
    await other.say(b"[" * 100_000 + b"\0")
    await other.say(b'{"method":"E.v","params":{"a":1},"sessionId":"s"}\0{"id":1,"result":{}}\0')
    assert await call == {}
    assert other.events == [("E.v", "s", {"a": 1})]


async def test_an_answer_that_is_too_large_fails_its_call_and_no_other(other: Other) -> None:
    large = asyncio.create_task(other.pipe.call("A.large"))
    await other.read()
    small = asyncio.create_task(other.pipe.call("A.small"))
    await other.read()
    await other.say(b'{"id":1,"result":{"data":"' + b"x" * MESSAGE_LIMIT + b'"}}\0{"id":2,"result":{}}\0')
    with pytest.raises(CallError, match=f"larger than {MESSAGE_LIMIT} bytes"):
        await large
    assert await small == {}


async def test_an_error_is_told(other: Other) -> None:
    call = asyncio.create_task(other.pipe.call("A.b"))
    await other.read()
    await other.say(b'{"id":1,"error":{"code":-1,"message":"no such target"}}\0')
    with pytest.raises(CallError, match="no such target"):
        await call


async def test_a_browser_that_ends_fails_every_call_and_is_told_once(other: Other) -> None:
    calls = [asyncio.create_task(other.pipe.call(f"A.{n}")) for n in range(3)]
    await asyncio.sleep(0)  # each has asked
    other.hang_up()
    for call in calls:
        with pytest.raises(GoneError):
            await call
    assert (other.pipe.is_open, other.ended) == (False, 1)
    other.pipe.close()
    assert other.ended == 1
    with pytest.raises(GoneError):
        await other.pipe.call("A.late")


async def test_a_page_that_is_gone_fails_its_own_calls(other: Other) -> None:
    gone = asyncio.create_task(other.pipe.call("A.gone", "s1"))
    await other.read()
    kept = asyncio.create_task(other.pipe.call("A.kept", "s2"))
    await other.read()
    other.pipe.forget("s1")
    with pytest.raises(GoneError):
        await gone
    await other.say(b'{"id":2,"result":{}}\0')
    assert await kept == {}


async def test_a_caller_that_leaves_does_not_cut_its_message(other: Other) -> None:
    call = asyncio.create_task(other.pipe.call("A.b", text="x" * 500_000))
    await asyncio.sleep(0)
    call.cancel()
    after = asyncio.create_task(other.pipe.call("A.after"))
    data = b""
    while data.count(b"\0") < 2:
        data += await asyncio.to_thread(os.read, other._commands, 1 << 16)
    first, second, _ = data.split(b"\0")
    assert (json.loads(first)["method"], json.loads(second)["method"]) == ("A.b", "A.after")
    await other.say(b'{"id":2,"result":{}}\0')
    assert await after == {}


async def test_calls_that_are_never_answered_or_never_read_are_bounded(other: Other) -> None:
    calls = [asyncio.create_task(other.pipe.call("A.b", text="x" * 1000)) for _ in range(1000)]
    async with asyncio.timeout(60):
        while sum(call.done() for call in calls) < 800:
            await asyncio.sleep(0.01)
    assert all(isinstance(call.exception(), CallError) for call in calls if call.done())
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    for _ in range(200):
        with contextlib.suppress(TimeoutError, CallError):
            await asyncio.wait_for(other.pipe.call("A.b", text="x" * 1000), 0.001)
    with pytest.raises(CallError):
        await other.pipe.call("A.b")


async def test_a_message_in_many_pieces_costs_no_more_than_its_bytes(other: Other) -> None:
    for _ in range(2000):
        other.pipe._hold(b"x")
    assert sys.getsizeof(other.pipe._message) < 4000
