"""The link to a guest: connections are kept, streams wait for their readers, and a machine's end reaches everyone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from poold.errors import EngineError, GuestError, MachineDied
from poold.link import Guest, http
from tests.unit.poold.poold_hostile import answer, answering, hostile, read_head, read_request, silence

PIECE = bytes(1 << 16)


async def pieces(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield PIECE


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for a state; the limit is the block's."""
    while not is_true():
        await asyncio.sleep(0.005)


async def test_a_connection_is_kept_for_the_next_call() -> None:
    async with hostile(answering(answer(b'{"a":1}'))) as guest:
        for _ in range(10):
            assert await guest.link.call("GET", "/health") == {"a": 1}
        assert guest.accepted == 1


async def test_calls_at_once_have_connections_of_their_own_and_two_are_kept() -> None:
    async with hostile(answering(answer())) as guest:
        await asyncio.gather(*(guest.link.call("GET", "/health") for _ in range(8)))
        assert guest.accepted == 8
        await asyncio.gather(*(guest.link.call("GET", "/health") for _ in range(2)))
        assert guest.accepted == 8


async def test_a_call_sends_its_json_and_its_length() -> None:
    seen: list[tuple[str, bytes]] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(answer())
        await silence(reader, writer)

    async with hostile(script) as guest:
        await guest.link.call("POST", "/identity", {"generation": 1})
        assert seen == [("POST /identity HTTP/1.1", b'{"generation":1}')]


NOT_TO_BE_REUSED = {
    "bytes after the answer": (answer() + b"more",),
    "a second answer at once": (answer() + answer(b'{"evil":1}'),),
    "a second answer later": (answer(), answer(b'{"evil":1}')),
    "an end that was announced": (answer(b"{}", "200 OK", "Connection: close"),),
    "an old protocol": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",),
}


@pytest.mark.parametrize("said", NOT_TO_BE_REUSED.values(), ids=NOT_TO_BE_REUSED.keys())
async def test_after_an_answer_with_more_behind_it_the_connection_is_not_reused(said: tuple[bytes, ...]) -> None:
    async with hostile(answering(*said)) as guest:
        assert await guest.link.call("GET", "/health") == {}
        for _ in range(5):  # what comes later has come
            await asyncio.sleep(0)
        assert await guest.link.call("GET", "/health") == {}
        assert guest.accepted == 2


async def test_a_second_answer_changes_nothing_of_the_first() -> None:
    evil = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Mark: evil\r\n\r\nevil"
    good = answer(b"good", "200 OK", "X-Mark: good")
    async with hostile(answering(good + evil)) as guest, guest.link.exchange("GET", "/files/content") as reply:
        assert reply.headers["x-mark"] == "good"
        assert await reply.read(100) == b"good"


async def test_a_guest_that_speaks_without_being_asked_is_hung_up_on() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer(b'{"mine":1}'))
        await writer.drain()
        await asked.wait()
        writer.write(answer(b'{"injected":1}'))
        await silence(reader, writer)

    asked = asyncio.Event()
    async with hostile(script) as guest:
        assert await guest.link.call("GET", "/health") == {"mine": 1}
        asked.set()
        await guest.hung_up.wait()
        guest.hung_up.clear()
        assert await guest.link.call("GET", "/health") == {"mine": 1}
        assert guest.accepted == 2


async def test_a_guest_that_speaks_first_is_heard_by_nobody() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b'{"early":1}') + answer(b'{"earlier":1}'))
        await silence(reader, writer)

    async with hostile(script) as guest:
        with contextlib.suppress(GuestError):
            assert await guest.link.call("GET", "/health") == {"early": 1}
        assert not guest.link._idle


async def test_an_exchange_that_was_left_in_its_body_is_not_reused() -> None:
    body = b"x" * 1_000_000
    async with hostile(answering(answer(body))) as guest:
        for _ in range(3):
            async with guest.link.exchange("GET", "/files/content") as reply:
                await anext(reply.chunks())
        async with guest.link.exchange("GET", "/files/content") as reply:
            assert await reply.read(len(body)) == body
        assert guest.accepted == 4


async def test_an_exchange_that_raises_or_is_cancelled_hangs_up() -> None:
    async with hostile(silence) as guest:
        asking = asyncio.create_task(guest.link.call("GET", "/health"))
        await until(lambda: guest.accepted == 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await guest.hung_up.wait()


async def test_a_slow_reader_slows_the_guest() -> None:
    """A guest that has 64 MB for a reader that reads nothing gets rid of about HIGH_WATER, until it is read."""
    total, sent = 64 << 20, 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.transport.set_write_buffer_limits(high=0)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        while sent < total:
            writer.write(PIECE)
            await writer.drain()
            sent += len(PIECE)
        await silence(reader, writer)

    async with hostile(script) as guest, guest.link.exchange("GET", "/files/content") as reply:
        before = -1
        while sent != before:  # until the guest can send no more
            before = sent
            await asyncio.sleep(0.05)
        assert 0 < sent < http.HIGH_WATER + (2 << 20)  # and what fits into the socket
        taken = 0
        async for chunk in reply.chunks():
            taken += len(chunk)
        assert taken == total


async def test_a_slow_guest_slows_the_sender() -> None:
    offered, taken = 0, 0
    may_read = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        _, headers = await read_head(reader)
        await may_read.wait()
        while taken < int(headers["content-length"]):
            taken += len(await reader.read(1 << 20))
        writer.write(answer(b'{"bytes":1}'))
        await silence(reader, writer)

    async def body() -> AsyncIterator[bytes]:
        nonlocal offered
        for _ in range(1024):
            offered += len(PIECE)
            yield PIECE

    async def upload() -> bytes:
        headers = {"Content-Length": str(1024 * len(PIECE))}
        async with guest.link.exchange("PUT", "/files/content", headers=headers, body=body()) as reply:
            return await reply.read(100)

    async with hostile(script) as guest:
        sending = asyncio.create_task(upload())
        before = -1
        while offered != before or not offered:  # until the sender has to wait
            before = offered
            await asyncio.sleep(0.05)
        assert offered < 4 << 20
        may_read.set()
        assert await sending == b'{"bytes":1}'
        assert taken == 1024 * len(PIECE)


async def test_a_guest_that_takes_nothing_of_a_request_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "STALL_LIMIT_S", 0.05)

    async def script(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        await asyncio.get_running_loop().create_future()

    async with hostile(script) as guest:
        with pytest.raises(GuestError, match="took no byte"):
            async with guest.link.exchange("PUT", "/files/content", body=pieces(1024)):
                pass


async def test_a_chunked_upload_arrives_as_it_was_sent() -> None:
    seen: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await read_request(reader))[1])
        writer.write(answer())
        await silence(reader, writer)

    async def body() -> AsyncIterator[bytes]:
        for piece in (b"ab", b"", b"c" * 17):
            yield piece

    async with hostile(script) as guest:
        async with guest.link.exchange("PUT", "/files/content", body=body()) as reply:
            await reply.read(100)
        assert seen == [b"2\r\nab\r\n11\r\n" + b"c" * 17 + b"\r\n0\r\n\r\n"]


async def test_the_end_of_the_machine_reaches_everyone_at_once() -> None:
    """Who waits for a head, who reads a body, who uploads: all learn that the machine died, and why."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, _ = await read_head(reader)
        if "body" in line:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
        if "upload" in line:
            writer.transport.pause_reading()
        waiting.add(line.split()[1])
        await asyncio.get_running_loop().create_future()

    async def read_body() -> None:
        async with guest.link.exchange("GET", "/body") as reply:
            await reply.read(100)

    async def upload() -> None:
        async with guest.link.exchange("PUT", "/upload", body=pieces(10_000)):
            pass

    waiting: set[str] = set()
    async with hostile(script) as guest:
        tasks = [asyncio.create_task(work) for work in (guest.link.call("GET", "/head"), read_body(), upload())]
        await until(lambda: len(waiting) == 3)
        guest.ended.set_result("killed by signal 9")
        done, _ = await asyncio.wait(tasks, timeout=2)
        assert len(done) == 3
        for task in tasks:
            assert isinstance(task.exception(), MachineDied)
            assert "killed by signal 9" in str(task.exception())
        with pytest.raises(MachineDied):
            await guest.link.call("GET", "/health")


async def test_a_machine_that_ends_while_it_is_dialled_has_died() -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str] = loop.create_future()

    async def dial() -> object:
        ended.set_result("gone")
        raise EngineError("reaching", "vm-1")

    link = Guest(dial, ended)  # type: ignore[arg-type]
    with pytest.raises(MachineDied, match="gone"):
        await link.call("GET", "/health")
    link.close()


async def test_a_guest_that_cannot_be_dialled_is_a_guest_error() -> None:
    async def dial() -> object:
        raise EngineError("reaching", "vm-1", hint="no such socket")

    link = Guest(dial, asyncio.get_running_loop().create_future())  # type: ignore[arg-type]
    with pytest.raises(GuestError, match="no such socket"):
        await link.call("GET", "/health")
    link.close()


async def test_closing_the_link_fails_the_exchanges_under_way() -> None:
    async with hostile(silence) as guest:
        calls = [asyncio.create_task(guest.link.call("GET", "/health")) for _ in range(3)]
        await until(lambda: guest.accepted == 3)
        await asyncio.sleep(0)
        guest.link.close()
        done, _ = await asyncio.wait(calls, timeout=2)
        assert len(done) == 3
        assert all(isinstance(call.exception(), GuestError) for call in calls)
        guest.link.close()  # twice is fine


async def test_the_end_of_the_machine_after_closing_touches_nobody() -> None:
    async with hostile(answering(answer())) as guest:
        await guest.link.call("GET", "/health")
        guest.link.close()
        guest.ended.set_result("late")
        await asyncio.sleep(0)
